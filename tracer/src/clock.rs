//! Turns CLOCK_MONOTONIC, which orders everything, into the wall clock that a person reads. The offset between
//! the two is never assumed: it comes from [`ClockPair`]s that the run recorded, so a capture shows the same times.

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

use crate::record::ClockPair;

/// How often both clocks are read before the closest pair is taken.
const ATTEMPTS: usize = 5;

/// Reads both clocks at the same moment: the realtime clock between two readings of the monotonic one, a few
/// times, and keeps the pair whose readings lie closest together.
pub fn read() -> Result<ClockPair, nix::Error> {
    let mut best: Option<(u64, ClockPair)> = None;
    for _ in 0..ATTEMPTS {
        let before = monotonic_ns()?;
        let realtime_ns = nanoseconds(ClockId::CLOCK_REALTIME)?;
        let after = monotonic_ns()?;
        let width = after.saturating_sub(before);
        let pair = ClockPair {
            monotonic_ns: before + width / 2,
            realtime_ns,
        };
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            best = Some((width, pair));
        }
    }
    best.map(|(_, pair)| pair).ok_or(nix::Error::EINVAL)
}

/// CLOCK_MONOTONIC now, the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> Result<u64, nix::Error> {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

fn nanoseconds(clock: ClockId) -> Result<u64, nix::Error> {
    let time = clock_gettime(clock)?;
    let nanoseconds = i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec());
    // A wall clock set before 1970 is the only way to fail.
    u64::try_from(nanoseconds).map_err(|_| nix::Error::ERANGE)
}

/// The wall clock of one node, as far as its recorded pairs tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Sorted by `monotonic_ns`.
    pairs: Vec<ClockPair>,
}

impl Clock {
    /// A clock from the pairs of a run, in any order.
    pub fn from_pairs(mut pairs: Vec<ClockPair>) -> Self {
        pairs.sort_unstable_by_key(|pair| (pair.monotonic_ns, pair.realtime_ns));
        Self { pairs }
    }

    /// Nanoseconds since the epoch at a monotonic time, by the nearest earlier pair; a time before the first pair
    /// goes by the first. `None` where nothing was recorded.
    ///
    /// The wall clock may have been set between two pairs: the later pair then holds for what follows it, and two
    /// events that straddle it keep their order only in monotonic time.
    pub fn realtime_ns(&self, monotonic_ns: u64) -> Option<i128> {
        let later = self
            .pairs
            .partition_point(|pair| pair.monotonic_ns <= monotonic_ns);
        let pair = self.pairs.get(later.saturating_sub(1))?;
        Some(
            i128::from(pair.realtime_ns) + i128::from(monotonic_ns) - i128::from(pair.monotonic_ns),
        )
    }

    /// A monotonic time as RFC 3339 in UTC with nanoseconds, always 30 characters long.
    /// `None` where no pair was recorded or the year has more than four digits (a capture is untrusted).
    pub fn rfc3339(&self, monotonic_ns: u64) -> Option<String> {
        let timestamp = Timestamp::from_nanosecond(self.realtime_ns(monotonic_ns)?).ok()?;
        let text = format!("{timestamp:.9}");
        (text.len() == "2026-12-01T06:36:36.123456789Z".len()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: ClockPair = ClockPair {
        monotonic_ns: 5_000_000_000,
        // 2026-12-01T06:36:36Z
        realtime_ns: 1_796_106_996_000_000_000,
    };

    #[test]
    fn nanoseconds_are_always_written_out() {
        let clock = Clock::from_pairs(vec![PAIR]);
        let check = |monotonic_ns, expected: &str| {
            assert_eq!(clock.rfc3339(monotonic_ns).as_deref(), Some(expected));
        };
        check(5_000_000_000, "2026-12-01T06:36:36.000000000Z");
        check(5_000_000_001, "2026-12-01T06:36:36.000000001Z");
        check(6_120_000_000, "2026-12-01T06:36:37.120000000Z");
        // Before the pair.
        check(4_999_999_999, "2026-12-01T06:36:35.999999999Z");
        check(0, "2026-12-01T06:36:31.000000000Z");
    }

    #[test]
    fn the_nearest_earlier_pair_counts() {
        // The wall clock was set one hour ahead between the two pairs, which arrive in the wrong order.
        let set = ClockPair {
            monotonic_ns: 7_000_000_000,
            realtime_ns: PAIR.realtime_ns + 3_602_000_000_000,
        };
        let clock = Clock::from_pairs(vec![set, PAIR]);
        assert_eq!(
            clock.rfc3339(6_999_999_999).as_deref(),
            Some("2026-12-01T06:36:37.999999999Z")
        );
        assert_eq!(
            clock.rfc3339(7_000_000_000).as_deref(),
            Some("2026-12-01T07:36:38.000000000Z")
        );
    }

    #[test]
    fn nothing_recorded_and_absurd_times_are_none() {
        assert_eq!(Clock::default().rfc3339(1), None);
        let absurd = Clock::from_pairs(vec![ClockPair {
            monotonic_ns: u64::MAX,
            realtime_ns: 0,
        }]);
        // More than 500 years before the epoch is still a date, and nothing overflows.
        assert!(
            absurd
                .rfc3339(0)
                .is_some_and(|time| time.starts_with("1385-"))
        );
    }

    #[test]
    fn the_machines_clocks_are_read_together() {
        let before = monotonic_ns().unwrap();
        let pair = read().unwrap();
        let after = monotonic_ns().unwrap();
        assert!((before..=after).contains(&pair.monotonic_ns));
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos();
        assert!(wall.abs_diff(u128::from(pair.realtime_ns)) < 1_000_000_000);
    }
}
