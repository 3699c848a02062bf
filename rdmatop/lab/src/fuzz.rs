//! Properties of the reader of the state file, that hold for any input.

use crate::state::Made;
use rdmatop_base::text;

/// Parsing, writing and parsing again changes nothing, and errors are printable.
///
/// # Panics
///
/// It panics where that does not hold.
pub fn state(raw: &[u8]) {
    match Made::parse(raw) {
        Ok(made) => assert_eq!(Made::parse(&made.bytes()).as_ref(), Ok(&made)),
        Err(why) => assert_eq!(text::sanitize(why.as_bytes()), why),
    }
}
