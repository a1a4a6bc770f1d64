//! One rtnetlink socket inside one network namespace. A socket stays in the namespace in which it was made, so it
//! needs no privilege any more once it is open.
//!
//! Framing only: what a message means is [`super::links`]' and [`super::routes`]' business. Only the kernel is
//! believed: a datagram that another process sent to the socket is skipped.

use std::{
    io::IoSliceMut,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, Parseable as _,
};
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
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind,
            getsockname, getsockopt, recvmsg, sendto, setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

/// Datagrams of a dump are at most 32 KiB (`NL_MAX_DUMP_ALLOC` of `netlink_dump()` in net/netlink/af_netlink.c), and so
/// is one that tells about a single device.
pub(super) const BUFFER_BYTES: usize = 64 * 1024;

/// How often a dump is repeated that the kernel calls inconsistent (`NLM_F_DUMP_INTR`: something changed meanwhile).
const ATTEMPTS: usize = 3;

/// The most datagrams that are thrown away in one go; a full queue holds some hundreds.
const DISCARDED_MAX: usize = 4096;

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

/// A message without its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// What follows the header.
    pub payload: &'a [u8],
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
pub(super) struct RouteSocket {
    fd: OwnedFd,
    /// The socket's own `nl_pid`: with the sequence number it tells our answers from notifications, which carry
    /// the number of whoever caused the change.
    port: u32,
    sequence: u32,
}

impl RouteSocket {
    /// Opens a socket in the namespace of the calling thread, subscribed to devices and addresses.
    pub(super) fn open() -> Result<Self, Errno> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        // The kernel answers a request before send() returns; this bounds the wait should it ever not.
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
        Self::adopt(fd)
    }

    /// Opens a socket of another netlink protocol in the namespace of the calling thread, subscribed to nothing.
    pub(super) fn open_for(protocol: SockProtocol) -> Result<Self, Errno> {
        let (family, flags) = (AddressFamily::Netlink, SockFlag::SOCK_CLOEXEC);
        let fd = socket(family, SockType::Raw, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
        Self::adopt(fd)
    }

    /// Takes over a socket that another process has opened like [`RouteSocket::open`].
    pub(super) fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        let port = getsockname::<NetlinkAddr>(fd.as_raw_fd())?.pid();
        Ok(Self {
            fd,
            port,
            sequence: 0,
        })
    }

    /// The cookie of the socket's namespace, or 0 where the kernel tells none.
    pub(super) fn netns_cookie(&self) -> u64 {
        getsockopt(&self.fd, cookie::NetnsCookie).unwrap_or(0)
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
        setsockopt(&self.fd, strict::StrictCheck, &true)?;
        let dumped = self.dump_loosely(what, buffer, each);
        setsockopt(&self.fd, strict::StrictCheck, &false)?;
        dumped
    }

    fn dump_loosely(
        &mut self,
        what: Dump,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<(), Errno> {
        for attempt in 1..=ATTEMPTS {
            let sequence = self.send(what.request(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let torn = self.answers(sequence, buffer, each)?;
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
        let sequence = self.send(request, NLM_F_REQUEST)?;
        self.answers(sequence, buffer, each)?;
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
        let sequence = self.send(RouteNetlinkMessage::GetNsId(request), NLM_F_REQUEST)?;
        let mut nsid = None;
        self.answers(sequence, buffer, &mut |message| {
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

    /// Takes one datagram of notifications that is already there, if any, and hands on its messages. `ENOBUFS` says that
    /// notifications were lost.
    pub(super) fn poll(
        &mut self,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<bool, Errno> {
        match self.receive(buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(datagram) => {
                for_each_message(datagram, |_, message| each(message));
                Ok(true)
            }
            Err(Errno::EAGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Throws away what waits to be read, with it the rest of a dump that was given up.
    pub(super) fn discard(&mut self, buffer: &mut [u8]) {
        for _ in 0..DISCARDED_MAX {
            match self.receive(buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(_) | Err(Errno::ENOBUFS) => {}
                Err(_) => break,
            }
        }
    }

    /// Sends a request of another protocol than rtnetlink, or one that has no type in the library, and hands on the
    /// answers: all of a dump where `flags` has `NLM_F_DUMP`, else one.
    pub(super) fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<(), Errno> {
        // struct nlmsghdr: length, type, flags, sequence number, port.
        let length = u32::try_from(16 + payload.len()).map_err(|_| Errno::EMSGSIZE)?;
        let sequence = self.next_sequence();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(payload);
        self.send_bytes(&bytes)?;
        self.answers(sequence, buffer, each)?;
        Ok(())
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> Result<u32, Errno> {
        let sequence = self.next_sequence();
        let mut message =
            NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(request));
        message.header.flags = flags;
        message.header.sequence_number = sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.send_bytes(&bytes)?;
        Ok(sequence)
    }

    fn next_sequence(&mut self) -> u32 {
        // 0 is the number of notifications.
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<(), Errno> {
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.fd.as_raw_fd(), bytes, &kernel, MsgFlags::empty())?;
        Ok(())
    }

    /// Receives until the request with this number is answered. Says whether the answer is torn.
    fn answers(
        &mut self,
        sequence: u32,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<bool, Errno> {
        let port = self.port;
        let mut torn = false;
        loop {
            let mut end = None;
            let datagram = self.receive(buffer, MsgFlags::empty())?;
            for_each_message(datagram, |header, message| {
                if (header.port_number(), header.sequence_number()) != (port, sequence) {
                    each(message);
                    return;
                }
                torn |= header.flags() & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => end = Some(status(message.payload)),
                    _ => {
                        each(message);
                        if header.flags() & libc::NLM_F_MULTI as u16 == 0 {
                            end = Some(Ok(()));
                        }
                    }
                }
            });
            if let Some(result) = end {
                return result.map(|()| torn);
            }
        }
    }

    /// One datagram from the kernel.
    fn receive<'a>(&self, buffer: &'a mut [u8], flags: MsgFlags) -> Result<&'a [u8], Errno> {
        loop {
            let mut slices = [IoSliceMut::new(buffer)];
            let received = recvmsg::<NetlinkAddr>(self.fd.as_raw_fd(), &mut slices, None, flags);
            let (length, sender) = match received {
                Ok(message) => (message.bytes, message.address),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno),
            };
            if sender.is_some_and(|sender| sender.pid() == 0) {
                return Ok(&buffer[..length]);
            }
        }
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The errno of an `NLMSG_ERROR` or `NLMSG_DONE`: negative, or 0 for success.
fn status(payload: &[u8]) -> Result<(), Errno> {
    let code = payload
        .first_chunk()
        .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    if code < 0 {
        Err(Errno::from_raw(code.saturating_neg()))
    } else {
        Ok(())
    }
}

/// Walks the messages of a datagram; stops at the first one that does not fit.
fn for_each_message(datagram: &[u8], mut each: impl FnMut(&NetlinkBuffer<&[u8]>, Message<'_>)) {
    let mut rest = datagram;
    while let Ok(buffer) = NetlinkBuffer::new_checked(rest) {
        each(
            &buffer,
            Message {
                kind: buffer.message_type(),
                payload: buffer.payload(),
            },
        );
        let length = (buffer.length() as usize).next_multiple_of(4);
        match rest.get(length..) {
            Some(next) => rest = next,
            None => break,
        }
    }
}
