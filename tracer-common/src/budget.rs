//! The budget of a flow: how many of its sightings are handed over before the rest is held back, so that a busy flow
//! cannot fill the ring. It owns the rule; the kernel half keeps one [`Spending`] a flow.
//!
//! What ends or refuses something is never held back: a packet that dies, SYN, FIN and RST, an ICMP message that is no
//! echo. Nor is what a socket says, so that a retransmission is known even if the segment is not seen.
//!
//! - A **TCP** connection has one budget for its whole life.
//! - Of **everything else** a flow's budget comes back: once a second has passed since its first sighting, the next one
//!   has all of it again. A request that comes long after a busy second is seen at every hop.
//!   DNS messages and ICMP echoes have [`PAIRED_FACTOR`] times as much: their flows are told apart by less than a packet.
//!
//! # What a verdict may conclude
//!
//! The sighting that takes the last of a budget is marked (`budget_spent` in its record and event). Of that flow
//! nothing that a budget holds back is certain to be seen **after the mark**: for TCP until the end, for all else until [`WINDOW_NS`]
//! after the mark. Outside of that, nothing of the flow was held back: absence there is evidence as
//! ever. Where the ledger's `rate_limited` did not move, nothing was held back behind any mark.
//!
//! A flow here is [`Packet::flow_hash`]: a five-tuple in both directions, each half of a translated flow on its own.
//! Later fragments have no ports, so all those between two addresses are one flow with its own marks.

use crate::packet::{IpProto, Packet, TCP_FIN, TCP_RST, TCP_SYN, is_dns};

/// Within this time a budget that comes back is not exceeded.
pub const WINDOW_NS: u64 = 1_000_000_000;

/// How many times the budget is larger for flows in which a request and its answer are told apart by an identifier.
pub const PAIRED_FACTOR: u32 = 16;

/// What a flow may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// So many sightings, at least two; 0 for all.
    pub sightings: u32,
    /// Within this time; [`u64::MAX`] for ever.
    pub window_ns: u64,
}

impl Allowance {
    const EVERYTHING: Self = Self {
        sightings: 0,
        window_ns: 0,
    };

    /// What the packet's flow may have before this packet is held back. `connection` is the budget of a TCP connection, `per_second`
    /// that of any other flow; 0 is no limit.
    #[inline(always)]
    pub fn of(packet: &Packet, connection: u32, per_second: u32) -> Self {
        let Some(layer) = packet.inner() else {
            return Self::EVERYTHING;
        };
        if layer.protocol == IpProto::Tcp as u8 {
            // A segment whose header was not captured may be any.
            if !layer.is_tcp() || layer.tcp_flags & (TCP_SYN | TCP_RST | TCP_FIN) != 0 {
                return Self::EVERYTHING;
            }
            return Self {
                sightings: connection,
                window_ns: u64::MAX,
            };
        }
        let echo = layer.is_echo_request() || layer.is_echo_reply();
        if layer.is_icmp() && !echo {
            return Self::EVERYTHING;
        }
        let factor = if echo || is_dns(layer) {
            PAIRED_FACTOR
        } else {
            1
        };
        Self {
            sightings: per_second * factor,
            window_ns: WINDOW_NS,
        }
    }
}

/// What a flow has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Spending {
    /// When its budget was last whole.
    pub since_ns: u64,
    /// How many sightings it had since then.
    pub sightings: u32,
    /// Zero.
    pub reserved: u32,
}

/// What becomes of a sighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It is handed over.
    HandOver,
    /// It is handed over and marked: the budget is spent now.
    HandOverMarked,
    /// It is held back and counted.
    HoldBack,
}

impl Spending {
    /// After the first sighting of a flow.
    pub const fn begin(now_ns: u64) -> Self {
        Self {
            since_ns: now_ns,
            sightings: 1,
            reserved: 0,
        }
    }

    /// Takes one more sighting out of a budget. The clock is read only where the budget is nearly spent.
    #[inline(always)]
    pub fn take(&mut self, allowance: Allowance, now_ns: impl FnOnce() -> u64) -> Ruling {
        let after = self.sightings.wrapping_add(1);
        if after < allowance.sightings {
            self.sightings = after;
            return Ruling::HandOver;
        }
        if allowance.window_ns != u64::MAX {
            let now_ns = now_ns();
            if now_ns.saturating_sub(self.since_ns) >= allowance.window_ns {
                *self = Self::begin(now_ns);
                return Ruling::HandOver;
            }
        }
        if after > allowance.sightings {
            return Ruling::HoldBack;
        }
        self.sightings = after;
        Ruling::HandOverMarked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = WINDOW_NS;

    /// The rulings over sightings at these times.
    fn rulings<const N: usize>(window_ns: u64, times: [u64; N]) -> [char; N] {
        let allowance = Allowance {
            sightings: 3,
            window_ns,
        };
        let mut spending: Option<Spending> = None;
        times.map(|now| {
            let Some(spending) = &mut spending else {
                spending = Some(Spending::begin(now));
                return '+';
            };
            match spending.take(allowance, || now) {
                Ruling::HandOver => '+',
                Ruling::HandOverMarked => '!',
                Ruling::HoldBack => '-',
            }
        })
    }

    #[test]
    fn a_connection_has_its_budget_once() {
        assert_eq!(
            rulings(u64::MAX, [0, 1, 2, 3, 90 * SECOND, 91 * SECOND]),
            ['+', '+', '!', '-', '-', '-']
        );
    }

    #[test]
    fn another_flow_has_its_budget_again_a_second_after_it_was_whole() {
        assert_eq!(
            rulings(
                SECOND,
                [
                    0,
                    1,
                    2,
                    3,
                    SECOND - 1,
                    SECOND,
                    SECOND + 1,
                    SECOND + 2,
                    SECOND + 3
                ]
            ),
            ['+', '+', '!', '-', '-', '+', '+', '!', '-']
        );
    }

    #[test]
    fn a_slow_flow_is_never_marked() {
        let slow = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| n * SECOND / 2);
        assert_eq!(rulings(SECOND, slow), ['+'; 8]);
    }

    #[test]
    fn what_is_held_back_lies_within_a_second_after_a_mark() {
        // A linear congruential generator: bursts and pauses of all lengths.
        let mut state = 1_u64;
        let mut now = 0;
        let times: [u64; 4096] = core::array::from_fn(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            now += (state >> 33) % (SECOND / 2);
            now
        });
        let mut marked_at = None;
        let mut held_back = 0;
        for (now, ruling) in times.into_iter().zip(rulings(SECOND, times)) {
            match ruling {
                '!' => marked_at = Some(now),
                '-' => {
                    held_back += 1;
                    assert!(marked_at.is_some_and(|mark| now - mark < SECOND));
                }
                _ => {}
            }
        }
        assert!(held_back > 100, "{held_back}");
    }

    #[test]
    fn the_clocks_of_two_cpus_may_differ() {
        let mut spending = Spending::begin(SECOND);
        let allowance = Allowance {
            sightings: 2,
            window_ns: SECOND,
        };
        assert_eq!(spending.take(allowance, || 0), Ruling::HandOverMarked);
        assert_eq!(spending.take(allowance, || 1), Ruling::HoldBack);
    }
}
