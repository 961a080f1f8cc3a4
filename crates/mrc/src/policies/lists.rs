//! Doubly linked lists over object ids, in one array.
//!
//! An object is in at most one of the lists. A list is a ring closed by a sentinel behind the
//! objects, so no operation has a special case for its ends.

/// Neighbours of an object, or of a list's sentinel.
#[derive(Clone, Copy)]
struct ListLink {
    newer: u32,
    older: u32,
}

const ABSENT: ListLink = ListLink {
    newer: u32::MAX,
    older: u32::MAX,
};

/// Identifies a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListId(u32);

pub(super) struct Lists {
    links: Vec<ListLink>,
    objects: u32,
}

impl Lists {
    pub(super) fn new<const N: usize>(objects: u32) -> (Lists, [ListId; N]) {
        let mut lists = Lists {
            links: vec![ABSENT; objects as usize],
            objects,
        };
        let ids = [(); N].map(|()| lists.add_list());
        (lists, ids)
    }

    pub(super) fn add_list(&mut self) -> ListId {
        let sentinel = self.links.len() as u32;
        self.links.push(ListLink {
            newer: sentinel,
            older: sentinel,
        });
        ListId(sentinel)
    }

    #[inline]
    pub(super) fn holds(&self, id: u32) -> bool {
        self.links[id as usize].newer != ABSENT.newer
    }

    #[inline]
    pub(super) fn push_newest(&mut self, list: ListId, id: u32) {
        let newest = self.links[list.0 as usize].older;
        self.links[id as usize] = ListLink {
            newer: list.0,
            older: newest,
        };
        self.links[newest as usize].newer = id;
        self.links[list.0 as usize].older = id;
    }

    #[inline]
    pub(super) fn unlink(&mut self, id: u32) {
        let ListLink { newer, older } = self.links[id as usize];
        self.links[newer as usize].older = older;
        self.links[older as usize].newer = newer;
        self.links[id as usize] = ABSENT;
    }

    #[inline]
    pub(super) fn move_to_newest(&mut self, list: ListId, id: u32) {
        if self.links[id as usize].newer != list.0 {
            self.unlink(id);
            self.push_newest(list, id);
        }
    }

    #[inline]
    pub(super) fn oldest(&self, list: ListId) -> Option<u32> {
        self.object(self.links[list.0 as usize].newer)
    }

    pub(super) fn is_empty(&self, list: ListId) -> bool {
        self.oldest(list).is_none()
    }

    /// The object that was pushed to the same list after this one.
    #[inline]
    pub(super) fn newer(&self, id: u32) -> Option<u32> {
        self.object(self.links[id as usize].newer)
    }

    fn object(&self, link: u32) -> Option<u32> {
        (link < self.objects).then_some(link)
    }
}
