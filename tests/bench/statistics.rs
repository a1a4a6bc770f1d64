//! Medians, and how far they can be trusted.

/// How often the samples are drawn anew for an interval.
const RESAMPLES: usize = 2_000;

/// A statistic with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Estimate {
    /// The statistic of all samples, and the middle 95 % of what it would have been on samples drawn from these.
    pub fn of<T: Copy>(samples: &[T], statistic: impl Fn(&[T]) -> f64) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut drawn: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let resample: Vec<T> = (0..samples.len())
                    .map(|_| samples[random.below(samples.len())])
                    .collect();
                statistic(&resample)
            })
            .collect();
        drawn.sort_by(f64::total_cmp);
        Self {
            value: statistic(samples),
            low: drawn[RESAMPLES / 40],
            high: drawn[RESAMPLES - 1 - RESAMPLES / 40],
        }
    }

    /// The median of all samples.
    pub fn median(samples: &[f64]) -> Self {
        Self::of(samples, median)
    }

    /// Scaled, for another unit.
    pub fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            low: self.low * factor,
            high: self.high * factor,
        }
    }
}

/// The middle value; the mean of the two in the middle of an even number.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The value below which a part of the samples lies, interpolated; not a number where there are none.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "positions among some thousand samples"
)]
pub fn quantile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let position = part * last as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * position.fract()
}

/// A small generator (xorshift64): the same samples give the same interval.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}
