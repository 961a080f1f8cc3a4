//! Who asks, and whom that user may profile.
//!
//! The kernel tells who is at the other end of a Unix socket, as it was when that end
//! connected. Root, this service's own user and the members of one group may profile
//! whom this service may; everybody else own processes, user code alone. `online` checks
//! each process after it was attached to, those that are followed as well.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::{fs, io};

use memgauge_host::sys::peer;
use memgauge_online::{Error, Result};
use rustix::net::sockopt::socket_peercred;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Groups, the first among them.
    pub groups: Vec<u32>,
}

impl Peer {
    /// Who is at the other end.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn of(stream: &UnixStream) -> io::Result<Peer> {
        let told = socket_peercred(stream)?;
        let mut groups = peer::groups(stream.as_fd())?;
        groups.push(told.gid.as_raw());
        Ok(Peer {
            uid: told.uid.as_raw(),
            groups,
        })
    }
}

/// Whom a user may profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Everybody whom this service may.
    All,
    /// Own processes.
    Own,
}

/// Who may do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// User of this service.
    pub service_uid: u32,
    /// Group whose members may profile everybody.
    pub group: Option<u32>,
}

impl Policy {
    /// What this user may.
    pub fn rights(&self, peer: &Peer) -> Rights {
        let member = self.group.is_some_and(|group| peer.groups.contains(&group));
        match peer.uid == 0 || peer.uid == self.service_uid || member {
            true => Rights::All,
            false => Rights::Own,
        }
    }
}

/// The number of a group, by its name or its number.
///
/// # Errors
/// `/etc/group` has no such name.
pub fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let file = fs::read_to_string("/etc/group").unwrap_or_default();
    number_of(&file, name).ok_or_else(|| {
        Error::usage(format!(
            "failed to find group `{name}` in `/etc/group`: name one of its groups, or a number"
        ))
    })
}

fn number_of(file: &str, name: &str) -> Option<u32> {
    let mut lines = file.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let same = fields.next()? == name;
        let number = fields.nth(1)?.parse().ok();
        number.filter(|_| same)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_own_user_and_the_group_may_profile_all() {
        let policy = Policy {
            service_uid: 7,
            group: Some(50),
        };
        let rights = |uid, groups: &[u32]| {
            policy.rights(&Peer {
                uid,
                groups: groups.to_vec(),
            })
        };
        assert_eq!(rights(0, &[]), Rights::All);
        assert_eq!(rights(7, &[]), Rights::All);
        assert_eq!(rights(8, &[8, 50]), Rights::All);
        assert_eq!(rights(8, &[8, 51]), Rights::Own);
        let nobody_more = Policy {
            group: None,
            ..policy
        };
        let peer = Peer {
            uid: 8,
            groups: vec![0, 50],
        };
        assert_eq!(nobody_more.rights(&peer), Rights::Own);
    }

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let file = "root:x:0:\nperfers:x:12:a,b\nperf:x:11:a\nbroken\nodd:x:y:\n";
        assert_eq!(number_of(file, "perf"), Some(11));
        assert_eq!(number_of(file, "per"), None);
        assert_eq!(number_of(file, "odd"), None);
        assert_eq!(group("4711").expect("a number"), 4711);
        let error = group("no such group").expect_err("no name of a group");
        assert!(error.to_string().contains("no such group"));
    }

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("a pair of sockets");
        let peer = Peer::of(&one).expect("the kernel tells");
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }
}
