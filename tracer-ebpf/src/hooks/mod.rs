//! The hooks, one file per part of the kernel. `tracer/src/probes.rs` lists them with what is missed without them.

mod drop;
mod egress;
mod ingress;
mod tc;
mod tcp;

use tracer_common::event::{Kind, PacketRecord};

pub use tc::Arrival;

use crate::{
    emit::{header, with_scratch},
    filter::{Admission, admits},
    skb::{Place, SkBuff, Window},
    wireguard,
};

/// Reports a packet at a hook that has nothing else to say, if it is wanted and `place` names a place. Its namespace is 0
/// where it is not known yet. `sealing` says that the device is a WireGuard device.
#[inline(always)]
fn report(
    kind: Kind,
    skb: SkBuff,
    window: &Window,
    netns_inum: u32,
    sealing: bool,
    place: impl FnOnce() -> Option<Place>,
) {
    with_scratch(|scratch| {
        let admission = admits(scratch, kind, skb, window, netns_inum);
        if matches!(admission, Admission::Refused) {
            if sealing {
                wireguard::forget(skb.address_of());
            }
            return;
        }
        let Some(place) = place() else {
            return;
        };
        if sealing && matches!(kind, Kind::Receive) {
            wireguard::unseal(scratch, skb.address_of());
        }
        let record = PacketRecord {
            header: header(kind, &place),
            skb: skb.info(window, scratch),
        };
        // SAFETY: the record lies in the scratch space, which is ours.
        unsafe { scratch.record::<PacketRecord>().write(record) };
        if matches!(admission, Admission::Postponed) {
            wireguard::remember(scratch, skb.address_of());
            return;
        }
        scratch.emit::<PacketRecord>(scratch.following());
        if sealing && matches!(kind, Kind::Xmit) {
            wireguard::seal(scratch, skb.address_of());
        }
    });
}
