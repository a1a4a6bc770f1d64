//! One rtnetlink socket inside one network namespace: what it is asked. What the answers mean is [`super::links`]' and
//! [`super::routes`]' business.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, Parseable as _};
use netlink_packet_route::{
    AddressFamily as RouteFamily, RouteNetlinkMessage,
    address::AddressMessage,
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
    nsid::{NsidAttribute, NsidMessage},
    route::{RouteAttribute, RouteFlags, RouteMessage, RouteType},
    rule::RuleMessage,
};
use nix::{
    errno::Errno,
    sys::socket::{SockProtocol, getsockopt, setsockopt},
};

use super::netlink::{Message, Netlink};

/// How often a dump is repeated that the kernel calls inconsistent (`NLM_F_DUMP_INTR`: something changed meanwhile).
const ATTEMPTS: usize = 3;

/// The bits of `nl_groups` (`RTMGRP_*` of linux/rtnetlink.h) for devices and for the addresses of both families.
const GROUPS: u32 =
    (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;

/// The cookie of a socket's network namespace (`SO_NETNS_COOKIE`, since Linux 5.14).
mod cookie {
    use nix::{getsockopt_impl, sockopt_impl};

    sockopt_impl!(
        /// `net->net_cookie`.
        NetnsCookie,
        GetOnly,
        libc::SOL_SOCKET,
        libc::SO_NETNS_COOKIE,
        u64
    );
}

/// Whether requests are checked strictly, which makes a dump of routes heed its filter (since Linux 4.20).
mod strict {
    use nix::{setsockopt_impl, sockopt_impl};

    sockopt_impl!(
        /// `NETLINK_GET_STRICT_CHK`
        StrictCheck,
        SetOnly,
        libc::SOL_NETLINK,
        libc::NETLINK_GET_STRICT_CHK,
        bool
    );
}

/// What to dump.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dump {
    /// All devices, without their statistics.
    Links,
    /// All devices, with their statistics.
    Statistics,
    /// All addresses of both families.
    Addresses,
    /// All routes of both families, of every table.
    Routes,
    /// The routes of one family that are of this type, of every table.
    RoutesOf(RouteFamily, RouteType),
    /// The unicast routes of one family that lead through this device, of every table.
    RoutesThrough(RouteFamily, u32),
    /// The path MTUs of one family that ICMP has told (`RTM_F_CLONED`, since Linux 5.3).
    LearnedMtus(RouteFamily),
    /// The routing rules of one family, in the order in which they are tried.
    Rules(RouteFamily),
}

impl Dump {
    fn request(self) -> RouteNetlinkMessage {
        match self {
            Self::Links => {
                let mut message = LinkMessage::default();
                message
                    .attributes
                    .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
                RouteNetlinkMessage::GetLink(message)
            }
            Self::Statistics => RouteNetlinkMessage::GetLink(LinkMessage::default()),
            Self::Addresses => RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            Self::Routes => RouteNetlinkMessage::GetRoute(RouteMessage::default()),
            Self::RoutesOf(family, kind) => {
                let mut message = RouteMessage::default();
                message.header.address_family = family;
                message.header.kind = kind;
                RouteNetlinkMessage::GetRoute(message)
            }
            Self::RoutesThrough(family, ifindex) => {
                let mut message = RouteMessage::default();
                message.header.address_family = family;
                message.header.kind = RouteType::Unicast;
                message.attributes.push(RouteAttribute::Oif(ifindex));
                RouteNetlinkMessage::GetRoute(message)
            }
            Self::LearnedMtus(family) => {
                let mut message = RouteMessage::default();
                message.header.address_family = family;
                message.header.flags = RouteFlags::Cloned;
                RouteNetlinkMessage::GetRoute(message)
            }
            Self::Rules(family) => {
                let mut message = RuleMessage::default();
                message.header.family = family;
                RouteNetlinkMessage::GetRule(message)
            }
        }
    }
}

/// The socket.
#[derive(Debug)]
pub(super) struct RouteSocket(Netlink);

impl RouteSocket {
    /// Opens a socket in the namespace of the calling thread, subscribed to devices and addresses.
    pub(super) fn open() -> Result<Self, Errno> {
        Netlink::open(SockProtocol::NetlinkRoute, GROUPS).map(Self)
    }

    /// Takes over a socket that another process has opened like [`RouteSocket::open`].
    pub(super) fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        Netlink::adopt(fd).map(Self)
    }

    /// The cookie of the socket's namespace, or 0 where the kernel tells none.
    pub(super) fn netns_cookie(&self) -> u64 {
        getsockopt(&self.0, cookie::NetnsCookie).unwrap_or(0)
    }

    /// Asks for everything and hands on each message in the order of arrival, notifications included: what a torn
    /// dump shows too early or not at all, a notification among them corrects.
    pub(super) fn dump(
        &mut self,
        what: Dump,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<(), Errno> {
        let filters = matches!(
            what,
            Dump::RoutesOf(..) | Dump::RoutesThrough(..) | Dump::LearnedMtus(_)
        );
        if !filters {
            return self.dump_loosely(what, buffer, each);
        }
        setsockopt(&self.0, strict::StrictCheck, &true)?;
        let dumped = self.dump_loosely(what, buffer, each);
        setsockopt(&self.0, strict::StrictCheck, &false)?;
        dumped
    }

    fn dump_loosely(
        &mut self,
        what: Dump,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<(), Errno> {
        for attempt in 1..=ATTEMPTS {
            let sequence = self.0.send(what.request(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let torn = self.0.answers(sequence, buffer, each)?;
            // After the last attempt what was heard has to do: the notifications will tell the rest.
            if !torn || attempt == ATTEMPTS {
                break;
            }
        }
        Ok(())
    }

    /// Asks for one thing and hands on the answer, and whatever notifications come before it. The kernel's refusal is an
    /// error: so are `ENOBUFS`, which says that notifications were lost, and `EAGAIN`, that no answer came.
    pub(super) fn request(
        &mut self,
        request: RouteNetlinkMessage,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<(), Errno> {
        let sequence = self.0.send(request, NLM_F_REQUEST)?;
        self.0.answers(sequence, buffer, each)?;
        Ok(())
    }

    /// The number by which this namespace knows another one, if it has a number for it (`RTM_GETNSID`).
    pub(super) fn nsid_of(
        &mut self,
        netns: BorrowedFd<'_>,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<Option<i32>, Errno> {
        let mut request = NsidMessage::default();
        let fd = u32::try_from(netns.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        request.attributes.push(NsidAttribute::Fd(fd));
        let sequence = self
            .0
            .send(RouteNetlinkMessage::GetNsId(request), NLM_F_REQUEST)?;
        let mut nsid = None;
        self.0.answers(sequence, buffer, &mut |message| {
            if message.kind != libc::RTM_NEWNSID {
                return each(message);
            }
            let Ok(answer) = NsidMessage::parse(message.payload) else {
                return;
            };
            for attribute in answer.attributes {
                if let NsidAttribute::Id(id) = attribute {
                    // NETNSA_NSID_NOT_ASSIGNED is -1.
                    nsid = (id >= 0).then_some(id);
                }
            }
        })?;
        Ok(nsid)
    }

    /// The socket without what it means: notifications are taken from there.
    pub(super) fn netlink(&mut self) -> &mut Netlink {
        &mut self.0
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
