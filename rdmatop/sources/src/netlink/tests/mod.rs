//! Tests of the whole stack over recorded and made-up answers.
mod counting;
mod fixtures;
mod hostile;
mod protocol;
mod sampling;

use super::error::NetlinkError;
use super::transport::{Datagram, Progress, Sink, Transport};
use super::wire::{DONE, F_MULTI, Message, MessageWriter, Messages};

/// Port id of the made-up socket.
const PORTID: u32 = 77;

/// A kernel made of a function: from the request to the datagrams it answers.
struct FakeKernel<F>(F);

impl<F: FnMut(&Message<'_>) -> Vec<Vec<u8>>> Transport for FakeKernel<F> {
    fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
        let request = Messages::new(request)
            .next()
            .expect("a request")
            .expect("a well-formed request");
        for bytes in (self.0)(&request) {
            if sink(Datagram {
                portid: PORTID,
                bytes: &bytes,
            })? == Progress::Complete
            {
                return Ok(());
            }
        }
        // A real socket would wait for its timeout here.
        Err(NetlinkError::Timeout { seconds: 5 })
    }
}

/// A message from the made-up kernel, in answer to `request`.
fn reply(request: &Message<'_>, flags: u16) -> MessageWriter {
    MessageWriter::new(request.kind, flags, request.seq).portid(PORTID)
}

/// The end of a dump, with its result (0 or a negative errno).
fn done(request: &Message<'_>, result: i32) -> Vec<u8> {
    MessageWriter::new(DONE, F_MULTI, request.seq)
        .portid(PORTID)
        .raw(&result.to_ne_bytes())
        .finish()
}
