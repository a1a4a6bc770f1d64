//! Numbers that look random and are the same for the same seed on every machine.

/// SplitMix64 (Steele, Lea and Flood, 2014): short, and good enough to choose scenarios.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of one run of a batch.
    pub fn new(seed: u64, run: u64) -> Self {
        let mut rng = Self(seed ^ run.wrapping_mul(0xd6e8_feb8_6659_fd93));
        // Neighbouring runs begin with neighbouring states.
        rng.next();
        rng
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    /// One of these, of which there is at least one.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        let last = choices.len() as u64 - 1;
        choices[usize::try_from(self.between(0, last)).unwrap_or(0)].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_run_others() {
        let draw = |seed, run| {
            let mut rng = Rng::new(seed, run);
            (0..8).map(|_| rng.between(1, 1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
        assert!(draw(1, 0).iter().all(|number| (1..=1000).contains(number)));
    }
}
