//! Sizes of objects: all of one unit, or in bytes.

/// Size of each object at its last insertion.
pub(super) trait Sizes {
    fn new(objects: u32) -> Self;
    fn of(&self, id: u32) -> u64;
    fn set(&mut self, id: u32, size: u64);
}

/// Every object has size 1, which costs neither memory nor time.
pub(super) struct UnitSizes;

impl Sizes for UnitSizes {
    fn new(_: u32) -> UnitSizes {
        UnitSizes
    }

    #[inline]
    fn of(&self, _: u32) -> u64 {
        1
    }

    #[inline]
    fn set(&mut self, _: u32, _: u64) {}
}

/// Objects have sizes in bytes.
pub(super) struct ByteSizes(Vec<u64>);

impl Sizes for ByteSizes {
    fn new(objects: u32) -> ByteSizes {
        ByteSizes(vec![0; objects as usize])
    }

    #[inline]
    fn of(&self, id: u32) -> u64 {
        self.0[id as usize]
    }

    #[inline]
    fn set(&mut self, id: u32, size: u64) {
        self.0[id as usize] = size;
    }
}

/// Whether an object fits beside `used` bytes. The sum may exceed 64 bits.
#[inline]
pub(super) fn fits(used: u64, size: u64, capacity: u64) -> bool {
    used.checked_add(size).is_some_and(|sum| sum <= capacity)
}
