//! Puts places, times and names into the sentences of a verdict. The names are untrusted; the report escapes them.

use super::{Place, Scene};
use crate::event::NetnsId;
use crate::flow::Sighting;

impl Scene<'_> {
    /// The device of a sighting, by name.
    pub(super) fn device_name(&self, sighting: &Sighting) -> Option<&str> {
        let device = self.devices().get(sighting.device()?)?;
        Some(&device.name)
    }

    /// "netns pod-b", or by its number where it has no name.
    pub(super) fn netns_words(&self, netns: NetnsId) -> String {
        match self.devices().netns_name(netns) {
            Some(name) => format!("netns {name}"),
            None => format!("netns {}", netns.inum),
        }
    }

    /// "on eth0 in netns pod-b", as far as it is known.
    pub(super) fn place_words(&self, sighting: &Sighting) -> String {
        let device = self.device_name(sighting).map(|name| format!("on {name}"));
        let netns = sighting
            .netns
            .map(|netns| format!("in {}", self.netns_words(netns)));
        match (device, netns) {
            (Some(device), Some(netns)) => format!("{device} {netns}"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "in a namespace that the packet does not tell".to_owned(),
        }
    }

    /// The prefix of a command that is to run in the namespace of a place: empty where it is not known how to enter it.
    pub(super) fn enter(&self, place: Place<'_>) -> String {
        self.enter_netns(place.sighting.netns)
    }

    /// The same of a namespace.
    pub(super) fn enter_netns(&self, netns: Option<NetnsId>) -> String {
        netns
            .and_then(|netns| self.devices().netns_name(netns))
            .filter(|name| is_plain(name))
            .map_or_else(String::new, |name| format!("ip netns exec {name} "))
    }
}

/// Whether a shell takes a name as one word. One that it does not is not put into a command that someone will paste.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('-')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@'))
}

/// `RT_TABLE_*` (include/uapi/linux/rtnetlink.h), the names of iproute2.
pub(super) fn table(number: u32) -> String {
    match number {
        253 => "default".to_owned(),
        254 => "main".to_owned(),
        255 => "local".to_owned(),
        number => number.to_string(),
    }
}

/// "812 ms", "1.03 s", "45 µs".
pub(crate) fn duration(duration_ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let ns = duration_ns as f64;
    match duration_ns {
        0..1_000_000 => format!("{:.0} µs", ns / 1e3),
        1_000_000..10_000_000 => format!("{:.1} ms", ns / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// "once", "twice", "3 times".
pub(super) fn times(count: usize) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        more => format!("{more} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::{duration, times};

    #[test]
    fn durations_have_about_three_digits() {
        let check = |ns, expect| assert_eq!(duration(ns), expect);
        check(45_400, "45 µs");
        check(1_234_567, "1.2 ms");
        check(812_000_000, "812 ms");
        check(1_032_000_000, "1.03 s");
    }

    #[test]
    fn small_counts_are_words() {
        assert_eq!([times(1), times(2), times(3)], ["once", "twice", "3 times"]);
    }
}
