//! Ethernet and the VLAN tags inside the frame.

use network_types::{
    eth::{EthHdr, EtherType},
    vlan::VlanHdr,
};

use super::{Packet, Reader, Status, Step, VLANS_MAX};

pub(super) const IPV4: u16 = u16::from_be(EtherType::Ipv4 as u16);
pub(super) const IPV6: u16 = u16::from_be(EtherType::Ipv6 as u16);
const VLAN: u16 = u16::from_be(EtherType::Ieee8021q as u16);
const SERVICE_VLAN: u16 = u16::from_be(EtherType::Ieee8021ad as u16);

/// Reads the Ethernet header at `at`; the tags are kept only for the outermost frame.
#[inline(always)]
pub(super) fn parse<R: Reader>(reader: &R, at: u32, outermost: bool, out: &mut Packet) -> Step {
    let Some(header) = reader.bytes::<{ EthHdr::LEN }>(at) else {
        return Step::End(Status::Truncated);
    };
    let mut ethertype = u16::from_be_bytes([header[12], header[13]]);
    let mut at = at + EthHdr::LEN as u32;
    for tag in 0..VLANS_MAX {
        if ethertype != VLAN && ethertype != SERVICE_VLAN {
            break;
        }
        let Some(header) = reader.bytes::<{ VlanHdr::LEN }>(at) else {
            return Step::End(Status::Truncated);
        };
        if outermost {
            out.vlan_tci[tag] = u16::from_be_bytes([header[0], header[1]]);
            out.vlan_count = tag as u8 + 1;
        }
        ethertype = u16::from_be_bytes([header[2], header[3]]);
        at += VlanHdr::LEN as u32;
    }
    out.ethertype = ethertype;
    network(ethertype, at)
}

/// What follows a link header with this EtherType.
#[inline(always)]
fn network(ethertype: u16, at: u32) -> Step {
    match ethertype {
        IPV4 => Step::Ip(at, 4),
        IPV6 => Step::Ip(at, 6),
        VLAN | SERVICE_VLAN => Step::End(Status::TooDeep),
        _ => Step::End(Status::NotIp),
    }
}
