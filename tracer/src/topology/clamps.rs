//! The rules of a namespace that change the MSS of TCP, as nftables tells them over netlink: its own
//! (`tcp option maxseg size set`), and those of `iptables-nft` (`TCPMSS`). A rule is believed to be reached: jumps and
//! sets are not followed.

use std::fs;

use netlink_packet_core::NLM_F_DUMP;
use nix::{errno::Errno, sys::socket::SockProtocol};

use crate::mtu::model::Clamp;

use super::{
    links::{attributes, number, text},
    netlink::Netlink,
};

/// `sizeof(struct nfgenmsg)`
const HEADER_BYTES: usize = 4;

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETRULE` (include/uapi/linux/netfilter).
const GET_RULE: u16 = 10 << 8 | 7;

/// The most clamps that are kept.
const CLAMPS_MAX: usize = 256;

/// The type bits of an attribute, without `NLA_F_NESTED`.
const TYPE_MASK: u16 = 0x3fff;

/// The kind of a TCP option, and the size that stands for "as the route has it" (`XT_TCPMSS_CLAMP_PMTU`).
const MAXSEG: u8 = 2;
const CLAMP_TO_PMTU: u16 = 0xffff;

/// What was found in a namespace.
#[derive(Debug)]
pub(super) struct Found {
    pub clamps: Vec<Clamp>,
    /// The older iptables has a table `mangle` here, whose rules are not read.
    pub legacy: bool,
}

/// Reads the rules in the namespace of the calling thread.
pub(super) fn read(buffer: &mut [u8]) -> Result<Found, Errno> {
    let mut clamps = Vec::new();
    let mut socket = Netlink::open(SockProtocol::NetlinkNetFilter, 0)?;
    socket.ask(
        GET_RULE,
        NLM_F_DUMP,
        &[0; HEADER_BYTES],
        buffer,
        &mut |message| {
            if clamps.len() < CLAMPS_MAX {
                clamps.extend(parse(message.payload));
            }
        },
    )?;
    let legacy = ["ip_tables_names", "ip6_tables_names"].iter().any(|file| {
        let path = format!("/proc/thread-self/net/{file}");
        fs::read_to_string(path).is_ok_and(|tables| tables.lines().any(|table| table == "mangle"))
    });
    Ok(Found { clamps, legacy })
}

/// The value of an attribute of a nest.
fn find(nest: &[u8], kind: u16) -> Option<Vec<u8>> {
    attributes(nest)
        .find(|attribute| attribute.kind() & TYPE_MASK == kind)
        .map(|attribute| attribute.value().to_vec())
}

fn big_endian(nest: &[u8], kind: u16) -> Option<u32> {
    find(nest, kind)?.try_into().ok().map(u32::from_be_bytes)
}

/// Reads a rule; `None` for one that does not touch the MSS.
fn parse(payload: &[u8]) -> Option<Clamp> {
    let rule = payload.get(HEADER_BYTES..)?;
    // NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS
    let [table, chain] =
        [1, 2].map(|kind| find(rule, kind).map_or_else(String::new, |name| text(&name)));
    let expressions = find(rule, 4)?;
    let mut clamp = Clamp {
        chain: format!("{table} {chain}"),
        ..Clamp::default()
    };
    let mut clamps = false;
    let mut loaded = None;
    let mut immediate = None;
    for element in attributes(&expressions) {
        // NFTA_EXPR_NAME and NFTA_EXPR_DATA
        let name = find(element.value(), 1).map_or_else(String::new, |name| text(&name));
        let data = find(element.value(), 2).unwrap_or_default();
        match name.as_str() {
            // NFTA_META_KEY: iif 4, oif 5, iifname 6, oifname 7.
            "meta" => loaded = big_endian(&data, 2).filter(|key| (4..=7).contains(key)),
            "cmp" => {
                if let Some(key) = loaded.take() {
                    compare(&mut clamp, key, &data);
                }
            }
            // A set of devices, or something else that is done with one.
            "lookup" | "bitwise" | "range" => clamp.unclear |= loaded.take().is_some(),
            // NFTA_IMMEDIATE_DATA, NFTA_DATA_VALUE
            "immediate" => {
                immediate = find(&data, 2)
                    .and_then(|data| find(&data, 1))
                    .and_then(|value| value.try_into().ok())
                    .map(u16::from_be_bytes);
            }
            "exthdr" => {
                // NFTA_EXTHDR_TYPE, NFTA_EXTHDR_OP (1 is a TCP option), NFTA_EXTHDR_SREG: it writes.
                let option = find(&data, 2)?.first().copied();
                let writes = find(&data, 7).is_some();
                if option == Some(MAXSEG) && big_endian(&data, 6) == Some(1) && writes {
                    clamps = true;
                    clamp.size = immediate;
                }
            }
            // NFTA_TARGET_NAME, NFTA_TARGET_INFO
            "target" if find(&data, 1).is_some_and(|name| text(&name) == "TCPMSS") => {
                clamps = true;
                clamp.size = find(&data, 3)
                    .and_then(|info| info.first_chunk().copied())
                    .map(u16::from_ne_bytes)
                    .filter(|size| *size != CLAMP_TO_PMTU);
            }
            _ => {}
        }
    }
    clamps.then_some(clamp)
}

/// Takes in `iifname "eth0"`: what is compared with the device that was loaded.
fn compare(clamp: &mut Clamp, key: u32, data: &[u8]) {
    // NFTA_CMP_OP, of which 0 is "equals", and NFTA_CMP_DATA with its NFTA_DATA_VALUE.
    let equals = big_endian(data, 2) == Some(0);
    let value = find(data, 3).and_then(|data| find(&data, 1));
    let (true, Some(value)) = (equals, value) else {
        clamp.unclear = true;
        return;
    };
    let name = match key {
        // By ifindex; `ip link` takes and shows such a name as well.
        4 | 5 => number(&value).map_or_else(String::new, |ifindex| format!("if{ifindex}")),
        // A name that ends without a NUL is the beginning of one.
        _ if value.contains(&0) => text(&value),
        _ => text(&value) + "*",
    };
    match key {
        4 | 6 => clamp.iif = Some(name),
        _ => clamp.oif = Some(name),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(4 + value.len()).expect("a short value");
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
        let name = attribute(1, format!("{name}\0").as_bytes());
        attribute(1, &[name, attribute(2, &data.concat())].concat())
    }

    fn rule(expressions: &[Vec<u8>]) -> Vec<u8> {
        [
            vec![1, 0, 0, 0],
            attribute(1, b"mangle\0"),
            attribute(2, b"FORWARD\0"),
            attribute(4, &expressions.concat()),
        ]
        .concat()
    }

    fn device_is(key: u32, name: &[u8]) -> [Vec<u8>; 2] {
        [
            expression("meta", &[attribute(2, &key.to_be_bytes())]),
            expression(
                "cmp",
                &[
                    attribute(2, &0_u32.to_be_bytes()),
                    attribute(3, &attribute(1, name)),
                ],
            ),
        ]
    }

    fn writes_maxseg() -> Vec<u8> {
        let data = [
            attribute(2, &[MAXSEG]),
            attribute(6, &1_u32.to_be_bytes()),
            attribute(7, &1_u32.to_be_bytes()),
        ];
        expression("exthdr", &data)
    }

    #[test]
    fn a_clamp_of_nftables_tells_its_devices_and_its_size() {
        let [meta, cmp] = device_is(7, b"wg0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let clamp = parse(&rule(&[meta, cmp, writes_maxseg()])).expect("a clamp");
        assert_eq!(clamp.chain, "mangle FORWARD");
        assert_eq!((clamp.oif.as_deref(), clamp.size), (Some("wg0"), None));
        assert_eq!(clamp.limits_what_leaves("wg0"), Some(false));

        let [meta, cmp] = device_is(6, b"lxc");
        let size = expression(
            "immediate",
            &[attribute(2, &attribute(1, &1360_u16.to_be_bytes()))],
        );
        let clamp = parse(&rule(&[meta, cmp, size, writes_maxseg()])).expect("a clamp");
        assert_eq!(
            (clamp.iif.as_deref(), clamp.size),
            (Some("lxc*"), Some(1360))
        );
        assert_eq!(clamp.limits_what_leaves("lxc12"), Some(true));
        assert_eq!(clamp.limits_what_leaves("eth0"), Some(false));
    }

    #[test]
    fn a_clamp_of_iptables_is_one() {
        let target = |mss: u16| {
            let data = [attribute(1, b"TCPMSS\0"), attribute(3, &mss.to_ne_bytes())];
            parse(&rule(&[expression("target", &data)])).expect("a clamp")
        };
        assert_eq!(target(0xffff).size, None);
        assert_eq!(target(1200).size, Some(1200));
        assert_eq!(target(1200).limits_what_leaves("any"), Some(true));
    }

    #[test]
    fn a_rule_that_only_looks_is_none_and_a_set_of_devices_is_unclear() {
        let reads = expression(
            "exthdr",
            &[attribute(2, &[MAXSEG]), attribute(6, &1_u32.to_be_bytes())],
        );
        assert_eq!(parse(&rule(&[reads])), None);
        let [meta, _] = device_is(6, b"eth0\0");
        let lookup = expression("lookup", &[]);
        let clamp = parse(&rule(&[meta, lookup, writes_maxseg()])).expect("a clamp");
        assert_eq!(clamp.limits_what_leaves("eth0"), None);
    }

    proptest! {
        #[test]
        fn no_rule_stops_the_parser(payload in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..120) {
            let _ = parse(&payload);
            let whole = rule(&[writes_maxseg()]);
            let _ = parse(&whole[..cut.min(whole.len())]);
        }
    }
}
