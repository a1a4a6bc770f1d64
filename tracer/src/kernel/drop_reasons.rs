//! The names of drop reasons, from the enumerations of the running kernel and its modules.
//!
//! A reason is a number whose upper half is a subsystem (`include/net/dropreason.h`): 0 is the core, and the
//! others belong to modules that keep their own enumeration.

use std::{collections::HashMap, sync::OnceLock};

use super::btf::Btf;

const CORE_PREFIX: &str = "SKB_DROP_REASON_";
const SUBSYSTEM_PREFIX: &str = "SKB_DROP_REASON_SUBSYS_";
const SUBSYSTEM_SHIFT: u32 = 16;

/// Which module and enumeration belong to a subsystem, by the kernel's name of it.
const MODULES: &[(&str, &str, &str)] = &[
    ("MAC80211_UNUSABLE", "mac80211", "mac80211_drop_reason"),
    ("MAC80211_MONITOR", "mac80211", "mac80211_drop_reason"),
    ("OPENVSWITCH", "openvswitch", "ovs_drop_reason"),
];

/// The names of one kernel's drop reasons.
#[derive(Debug, Default)]
pub struct DropReasons {
    names: HashMap<u32, Box<str>>,
    subsystems: HashMap<u32, Box<str>>,
    /// Filled at the first reason of a module, since reading a module's BTF takes a while.
    modules: OnceLock<HashMap<u32, Box<str>>>,
}

impl DropReasons {
    /// Reads the kernel's enumerations; empty where the kernel has none.
    pub fn of(btf: &Btf) -> Self {
        let numbered = |tag: &str, prefix: &str| -> HashMap<u32, Box<str>> {
            btf.enumerators(tag)
                .unwrap_or_default()
                .into_iter()
                .filter_map(|(name, value)| {
                    let name = name.strip_prefix(prefix).unwrap_or(name);
                    Some((u32::try_from(value).ok()?, name.into()))
                })
                .collect()
        };
        Self {
            names: numbered("skb_drop_reason", CORE_PREFIX),
            subsystems: numbered("skb_drop_reason_subsys", SUBSYSTEM_PREFIX),
            modules: OnceLock::new(),
        }
    }

    /// The kernel's name of a reason without its prefix; the number where it has no name, and `None` where the
    /// kernel has no reasons at all.
    pub fn name(&self, reason: u32) -> Option<String> {
        if self.names.is_empty() {
            return None;
        }
        if let Some(name) = self.names.get(&reason) {
            return Some(name.to_string());
        }
        let Some(subsystem) = self.subsystems.get(&(reason >> SUBSYSTEM_SHIFT)) else {
            return Some(format!("{reason:#x}"));
        };
        let modules = self.modules.get_or_init(|| self.module_names());
        Some(modules.get(&reason).map_or_else(
            || format!("{subsystem}_{:#x}", reason & 0xffff),
            ToString::to_string,
        ))
    }

    /// The reasons of all modules that are loaded and describe theirs.
    fn module_names(&self) -> HashMap<u32, Box<str>> {
        let Ok(kernel) = Btf::of_kernel() else {
            return HashMap::new();
        };
        let mut names = HashMap::new();
        for (subsystem, module, tag) in MODULES {
            if !self.subsystems.values().any(|known| **known == **subsystem) {
                continue;
            }
            let Ok(btf) = Btf::of_module(module, &kernel) else {
                continue;
            };
            // Where the module is built in, its enumeration is in the kernel's BTF.
            let enumerators = btf.enumerators(tag).or_else(|| kernel.enumerators(tag));
            for (name, value) in enumerators.unwrap_or_default() {
                if let Ok(value) = u32::try_from(value) {
                    names.insert(value, name.into());
                }
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pairs: &[(u32, &str)]) -> HashMap<u32, Box<str>> {
        pairs
            .iter()
            .map(|(number, name)| (*number, (*name).into()))
            .collect()
    }

    fn reasons() -> DropReasons {
        DropReasons {
            names: named(&[(2, "NOT_SPECIFIED"), (3, "NO_SOCKET")]),
            subsystems: named(&[(0, "CORE"), (2, "OPENVSWITCH")]),
            modules: OnceLock::from(named(&[(0x2_0001, "OVS_DROP_LAST_ACTION")])),
        }
    }

    #[test]
    fn a_reason_has_the_name_that_this_kernel_gives_it() {
        let name = |reason| reasons().name(reason);
        assert_eq!(name(3).as_deref(), Some("NO_SOCKET"));
        assert_eq!(name(0x2_0001).as_deref(), Some("OVS_DROP_LAST_ACTION"));
    }

    #[test]
    fn a_reason_without_a_name_is_told_by_its_subsystem_and_number() {
        let name = |reason| reasons().name(reason);
        assert_eq!(name(200).as_deref(), Some("CORE_0xc8"));
        assert_eq!(name(0x2_0009).as_deref(), Some("OPENVSWITCH_0x9"));
        assert_eq!(name(0x7_0001).as_deref(), Some("0x70001"));
    }

    #[test]
    fn a_kernel_without_reasons_gives_none() {
        assert_eq!(DropReasons::default().name(0), None);
    }
}
