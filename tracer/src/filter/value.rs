//! Reads a value: an address, a network, ports or a VNI.

use std::net::{IpAddr, Ipv4Addr};

use super::error::FilterError;
use super::expr::{self, Expr, Network};
use super::lex::Token;
use super::parse::Parser;
use super::qualifiers::{Kind, Protocol, Qualifiers};

/// The first number that is no VNI.
const VNI_END: u32 = 1 << 24;

impl Parser<'_> {
    /// The address or network behind `src`, `dst` or nothing.
    pub(super) fn address(&mut self, qualifiers: Qualifiers) -> Result<Expr, FilterError> {
        let kind = if self.peek().text.contains('/') {
            Kind::Net
        } else {
            Kind::Host
        };
        self.value(qualifiers, kind)
    }

    pub(super) fn value(
        &mut self,
        qualifiers: Qualifiers,
        kind: Kind,
    ) -> Result<Expr, FilterError> {
        let token = self.next();
        let condition = match kind {
            Kind::Host => {
                let network = Network::host(self.host(&token)?);
                self.network_condition(qualifiers, network, &token)?
            }
            Kind::Net => {
                let network = self.network(&token)?;
                self.network_condition(qualifiers, network, &token)?
            }
            Kind::Port => {
                let port = self.port(&token, token.text)?;
                qualifiers.at_ends(|end| expr::ports(port, port, end))
            }
            Kind::PortRange => {
                let (low, high) = token
                    .text
                    .split_once('-')
                    .unwrap_or((token.text, token.text));
                let (low, high) = (self.port(&token, low)?, self.port(&token, high)?);
                if low > high {
                    let hint = Some(format!("did you mean `{high}-{low}`?"));
                    return Err(self.error(&token.span, "the range ends before it begins", hint));
                }
                qualifiers.at_ends(|end| expr::ports(low, high, end))
            }
            Kind::Vni => expr::vni(self.vni(&token)?),
        };
        Ok(qualifiers.of_protocol(condition))
    }

    fn network_condition(
        &self,
        qualifiers: Qualifiers,
        network: Network,
        token: &Token,
    ) -> Result<Expr, FilterError> {
        if qualifiers
            .protocol
            .is_some_and(|protocol| !protocol.carries(network.address))
        {
            let message = "such a packet has no address of this IP version";
            return Err(self.error(&token.span, message, None));
        }
        Ok(qualifiers.at_ends(|end| expr::network(network, end)))
    }

    fn host(&self, token: &Token) -> Result<IpAddr, FilterError> {
        if let Ok(address) = token.text.parse() {
            return Ok(address);
        }
        if token.text.contains('/') {
            let hint = Some(format!("did you mean `net {}`?", token.text));
            return Err(self.error(&token.span, "`host` takes a single address", hint));
        }
        if Kind::of_word(token.text).is_some() || Protocol::of_word(token.text).is_some() {
            let message = format!("expected {} before `{}`", Kind::Host.value(), token.text);
            return Err(self.error(&token.span, message, None));
        }
        let message = format!(
            "`{}` is no IP address, and names are not looked up",
            token.text
        );
        Err(self.error(
            &token.span,
            message,
            Some("DNS may be what is broken: give the address".to_owned()),
        ))
    }

    fn port(&self, token: &Token, text: &str) -> Result<u16, FilterError> {
        if let Some(port) = decimal(text).and_then(|port| u16::try_from(port).ok()) {
            return Ok(port);
        }
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
        let is_range = token.text == text && text.split('-').all(|part| decimal(part).is_some());
        let (message, hint) = if is_number {
            (format!("port {text} is beyond 65535"), None)
        } else if is_range {
            (
                "`port` takes a single port".to_owned(),
                Some(format!("did you mean `portrange {text}`?")),
            )
        } else {
            (
                format!("`{text}` is no port number, and names of services are not looked up"),
                None,
            )
        };
        Err(self.error(&token.span, message, hint))
    }

    fn vni(&self, token: &Token) -> Result<u32, FilterError> {
        let number = match token.text.strip_prefix("0x") {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                u32::from_str_radix(digits, 16).ok()
            }
            Some(_) => None,
            None => decimal(token.text),
        };
        number.filter(|vni| *vni < VNI_END).ok_or_else(|| {
            self.error(
                &token.span,
                format!("`{}` is no VNI: 0 to 16777215", token.text),
                None,
            )
        })
    }

    /// A network: an address, or the first bytes of an IPv4 address as in `net 10.1`, with a length or a mask.
    fn network(&mut self, token: &Token) -> Result<Network, FilterError> {
        let (text, len) = match token.text.split_once('/') {
            Some((text, len)) => (text, Some(len)),
            None => (token.text, None),
        };
        let Some((address, own_len)) = network_address(text) else {
            let message = format!("`{text}` is no network address, and names are not looked up");
            return Err(self.error(&token.span, message, None));
        };
        let bits = Network::address_bits(address);
        let mut span = token.span.clone();
        let prefix_len = if let Some(len) = len {
            decimal(len)
                .and_then(|len| u8::try_from(len).ok())
                .filter(|len| *len <= bits)
                .ok_or_else(|| {
                    self.error(
                        &token.span,
                        format!("the length of this network is 0 to {bits}"),
                        None,
                    )
                })?
        } else if self.peek().text == "mask" {
            self.next();
            let mask = self.next();
            span.end = mask.span.end;
            mask.text
                .parse()
                .ok()
                .filter(|_| address.is_ipv4())
                .and_then(mask_len)
                .ok_or_else(|| {
                    let message =
                        format!("`{}` is no IPv4 network mask, like 255.255.0.0", mask.text);
                    self.error(&mask.span, message, None)
                })?
        } else {
            own_len
        };
        let network = Network::containing(address, prefix_len);
        if network.address == address {
            Ok(network)
        } else {
            let message = format!("{address} has bits outside of a network of length {prefix_len}");
            let hint = Some(format!(
                "did you mean `net {}/{prefix_len}`?",
                network.address
            ));
            Err(self.error(&span, message, hint))
        }
    }
}

/// Whether the text is an address or a network with its length.
pub(super) fn is_address(text: &str) -> bool {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    address.parse::<IpAddr>().is_ok()
}

/// A number in decimal digits and nothing else.
fn decimal(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// The address of a network and the length that its own form implies: `10.1` is 10.1.0.0/16.
fn network_address(text: &str) -> Option<(IpAddr, u8)> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some((address, Network::address_bits(address)));
    }
    let mut octets = [0; 4];
    let mut count = 0;
    for part in text.split('.') {
        *octets.get_mut(count)? = u8::try_from(decimal(part)?).ok()?;
        count += 1;
    }
    Some((IpAddr::from(octets), count as u8 * 8))
}

/// The length of a network mask whose ones are all in front.
fn mask_len(mask: Ipv4Addr) -> Option<u8> {
    let bits = mask.to_bits();
    (bits.leading_ones() + bits.trailing_zeros() >= 32).then_some(bits.leading_ones() as u8)
}
