/// Xorshift generator, so that each run has the same input.
pub struct Random(pub u64);

#[allow(dead_code)]
impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.draw() % limit as u64) as usize
    }

    pub fn point(&mut self) -> [f64; 3] {
        [0; 3].map(|_: i32| (self.draw() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// A word of 4 to 11 lower-case letters.
    pub fn word(&mut self) -> String {
        let length = 4 + self.below(8);
        (0..length).map(|_| (b'a' + self.below(26) as u8) as char).collect()
    }
}
