//! What one rtnetlink message says about a neighbour, and nothing else: no socket, no state.

use crate::fact::NeighbourState;

use super::{links::attributes, netlink::Message};

/// `sizeof(struct ndmsg)`
const HEADER_BYTES: usize = 12;

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub state: Option<NeighbourState>,
    pub mac: Option<[u8; 6]>,
}

/// Reads a message; `None` for one that is about something else.
pub(super) fn parse(message: Message<'_>) -> Option<Neighbour> {
    if message.kind != libc::RTM_NEWNEIGH {
        return None;
    }
    // struct ndmsg: family, three of padding, the ifindex, the state, flags and type.
    let header: &[u8; HEADER_BYTES] = message.payload.first_chunk()?;
    let [_, _, _, _, _, _, _, _, state_low, state_high, _, _] = *header;
    let mac = attributes(&message.payload[HEADER_BYTES..])
        .find(|attribute| attribute.kind() == libc::NDA_LLADDR)
        .and_then(|attribute| attribute.value().try_into().ok());
    Some(Neighbour {
        state: NeighbourState::from_number(u16::from_ne_bytes([state_low, state_high])),
        mac,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(payload: &[u8]) -> Option<Neighbour> {
        parse(Message {
            kind: libc::RTM_NEWNEIGH,
            payload,
        })
    }

    #[test]
    fn a_neighbour_tells_its_state_and_its_address() {
        // Family 2, ifindex 7, NUD_FAILED, type unicast; NDA_DST.
        let failed = [
            2, 0, 0, 0, 7, 0, 0, 0, 0x20, 0, 0, 1, 8, 0, 1, 0, 10, 2, 0, 77,
        ];
        assert_eq!(
            parsed(&failed),
            Some(Neighbour {
                state: Some(NeighbourState::Failed),
                mac: None,
            })
        );
        // NUD_PERMANENT, with NDA_LLADDR.
        let permanent = [
            2, 0, 0, 0, 7, 0, 0, 0, 0x80, 0, 0, 1, 10, 0, 2, 0, 2, 0, 0, 0, 0, 0x0c, 0, 0,
        ];
        assert_eq!(
            parsed(&permanent),
            Some(Neighbour {
                state: Some(NeighbourState::Permanent),
                mac: Some([2, 0, 0, 0, 0, 0x0c]),
            })
        );
        assert_eq!(parsed(&failed[..11]), None);
    }
}
