//! What fuzzing holds to be true of parsers that their crate keeps to itself. Each function panics where that
//! does not hold.

use rdmatop_base::text;

use crate::{
    dcb::{self, Dcb},
    ethtool::{NAME, choose},
    hw_counters::state::Changes,
    netlink::wire::Messages,
    tcp::diag,
};

/// Whatever the attributes are, the priorities are sorted, unique and below 8.
///
/// # Panics
///
/// It panics where that does not hold.
pub fn dcb(raw: &[u8]) {
    if let Ok(Dcb { pfc: Some(on), .. }) = dcb::decode(raw) {
        assert!(on.is_sorted_by(|one, next| one < next) && on.iter().all(|priority| *priority < 8));
    }
}

/// Each chosen name stands in the input at the place that is returned with it.
///
/// # Panics
///
/// It panics where that does not hold.
pub fn ethtool(raw: &[u8]) {
    for (at, name) in choose(raw, |name| !name.is_empty()) {
        assert!(
            raw.get(at * NAME..)
                .is_some_and(|rest| rest.starts_with(name.as_bytes()))
        );
        assert!(name.len() <= NAME);
    }
}

/// Parsing, writing and parsing again changes nothing, and errors are printable.
///
/// # Panics
///
/// It panics where that does not hold.
pub fn changes(raw: &[u8]) {
    match Changes::parse(raw) {
        Ok(changes) => assert_eq!(Changes::parse(&changes.bytes()).as_ref(), Ok(&changes)),
        Err(why) => assert_eq!(text::sanitize(why.as_bytes()), why),
    }
}

/// Each count that is read from an answer of sock_diag stands in it.
///
/// # Panics
///
/// It panics where that does not hold.
pub fn sock_diag(raw: &[u8]) {
    for message in Messages::new(raw).flatten() {
        if let Ok(Some(connection)) = diag::connection(message.payload) {
            for count in [connection.sent, connection.received] {
                let count = count.to_ne_bytes();
                assert!(message.payload.windows(8).any(|bytes| bytes == count));
            }
        }
    }
}
