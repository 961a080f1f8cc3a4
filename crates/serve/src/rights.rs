//! Identity of clients, and which processes they may profile.
//!
//! The kernel reports the user and groups of the client at the time it connected to the Unix
//! socket. Root, the service's user and the members of one group may profile everything that the
//! service may. All other users may profile only their own processes in user space. `online` checks
//! each process, including followed ones, after attaching.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::{fs, io};

use memgauge_host::sys::peer;
use memgauge_online::{Error, Result};
use rustix::net::sockopt::socket_peercred;

/// The client at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User ID.
    pub uid: u32,
    /// Group IDs, including the primary one.
    pub groups: Vec<u32>,
}

impl Peer {
    /// Returns the client at the other end of a connection.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn from_socket(stream: &UnixStream) -> io::Result<Peer> {
        let credentials = socket_peercred(stream)?;
        let mut groups = peer::groups(stream.as_fd())?;
        groups.push(credentials.gid.as_raw());
        Ok(Peer {
            uid: credentials.uid.as_raw(),
            groups,
        })
    }
}

/// Processes that a client may profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// All processes that the service may profile.
    All,
    /// Only the client's own processes.
    Own,
}

/// A client and its rights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientRights<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) rights: Rights,
}

/// Rules for the rights of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPolicy {
    /// User ID of this service.
    pub service_uid: u32,
    /// Group whose members may profile all processes.
    pub group: Option<u32>,
}

impl AccessPolicy {
    /// Returns the rights of a client.
    pub fn rights(&self, peer: &Peer) -> Rights {
        let member = self.group.is_some_and(|group| peer.groups.contains(&group));
        match peer.uid == 0 || peer.uid == self.service_uid || member {
            true => Rights::All,
            false => Rights::Own,
        }
    }
}

/// Returns the ID of a group, given by name or number.
///
/// # Errors
/// `/etc/group` has no group of this name.
pub fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let file = fs::read_to_string("/etc/group").unwrap_or_default();
    find_group(&file, name).ok_or_else(|| {
        Error::usage(format!(
            "failed to find group `{name}` in /etc/group: use a group listed there, or a number"
        ))
    })
}

fn find_group(file: &str, name: &str) -> Option<u32> {
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
    fn root_service_user_and_group_may_profile_all() {
        let policy = AccessPolicy {
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
        let nobody_more = AccessPolicy {
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
    fn group_is_found_by_its_whole_name() {
        let file = "root:x:0:\nperfers:x:12:a,b\nperf:x:11:a\nbroken\nodd:x:y:\n";
        assert_eq!(find_group(file, "perf"), Some(11));
        assert_eq!(find_group(file, "per"), None);
        assert_eq!(find_group(file, "odd"), None);
        assert_eq!(group("4711").expect("a number"), 4711);
        let error = group("no such group").expect_err("no name of a group");
        assert!(error.to_string().contains("no such group"));
    }

    #[test]
    fn peer_of_a_socket_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("a pair of sockets");
        let peer = Peer::from_socket(&one).expect("the kernel tells");
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }
}
