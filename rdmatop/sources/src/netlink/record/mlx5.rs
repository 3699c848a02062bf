//! What the firmware of mlx5 has of a queue pair: `RDMA_NLDEV_ATTR_RES_RAW`, made by `fill_res_qp_entry_raw`
//! of drivers/infiniband/hw/mlx5/restrack.c. Big-endian, and not part of the kernel's ABI.
//!
//! It is a resource dump: segments one after another, `resource_dump_*_segment` in
//! include/linux/mlx5/mlx5_ifc.h (the same in Linux 6.1, 6.12 and 7.2), with the numbers of their types in
//! mstflint's resource_dump_lib. One of them has the answer to the command `QUERY_QP` (`query_qp_out`), whose
//! context (`qpc`) has the path to the peer (`ads`). No such bytes could be recorded here: whatever is not as
//! that header has it is refused.
use rdmatop_base::ib::{Gid, QpState, QpType};

/// Types of segments that frame others. `RESOURCES` are those of the device, which the firmware numbers.
const NOTICE: u16 = 0xfff9;
const COMMAND: u16 = 0xfffa;
const TERMINATE: u16 = 0xfffb;
const REFERENCE: u16 = 0xfffd;
const INFO: u16 = 0xfffe;
/// Lengths of those that always have the same, in bytes.
const FIXED: [(u16, usize); 3] = [(INFO, 16), (COMMAND, 20), (TERMINATE, 4)];
const RESOURCES: std::ops::RangeInclusive<u16> = 0..=0xfeff;
/// What is before the payload of a resource: a header, a reserved word and two indexes.
const RESOURCE_HEADER: usize = 16;
/// Bytes of `query_qp_out`, without the addresses of the rings and whatever else may follow.
const QUERY_QP: usize = 256;
/// Where the context begins in it, and the primary path in that.
const QPC: usize = 24;
const PATH: usize = QPC + 24;

/// A queue pair as the firmware has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpContext {
    /// The number that was asked for, as the answer repeats it.
    pub qpn: u32,
    /// State.
    pub state: QpState,
    /// Type: RC or UC.
    pub qp_type: QpType,
    /// The peer's QP number.
    pub remote_qpn: u32,
    /// Port.
    pub port: u32,
    /// The path has a global header (GRH); that of RoCE always has, whatever this says.
    pub grh: bool,
    /// Index of its own address in the port's GID table.
    pub sgid_index: u8,
    /// The address of the peer's port, if the path has one.
    pub remote_gid: Gid,
}

impl QpContext {
    /// Reads a dump; an error says what is not as expected.
    pub fn decode(dump: &[u8]) -> Result<Self, &'static str> {
        Self::of_resource(resource(dump)?)
    }

    fn of_resource(resource: &[u8]) -> Result<Self, &'static str> {
        let short = "the resource is too short";
        let header = resource.first_chunk::<RESOURCE_HEADER>().ok_or(short)?;
        let answer = resource
            .get(RESOURCE_HEADER..)
            .and_then(<[u8]>::first_chunk::<QUERY_QP>);
        let answer = answer.ok_or(short)?;
        if answer[0] != 0 {
            return Err("the status of the query is not 0");
        }
        let word =
            |at: usize| u32::from_be_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&answer[PATH + 16..PATH + 32]);
        Ok(Self {
            qpn: u32::from_be_bytes([header[8], header[9], header[10], header[11]]),
            // `enum mlx5_qp_state`; 7 is a send queue that drains.
            state: match answer[QPC] >> 4 {
                state @ (0..=3 | 6) => QpState(state),
                4 => QpState::SQE,
                5 | 7 => QpState::SQD,
                _ => return Err("no state has this number"),
            },
            // `MLX5_QPC_ST_*`.
            qp_type: match answer[QPC + 1] {
                0 => QpType::RC,
                1 => QpType::UC,
                _ => return Err("neither RC nor UC"),
            },
            remote_qpn: word(QPC + 20) & 0xff_ffff,
            port: answer[PATH + 37].into(),
            grh: answer[PATH + 5] & 0x80 != 0,
            sgid_index: answer[PATH + 9],
            remote_gid: Gid(gid),
        })
    }
}

/// The one resource among the segments of a dump.
fn resource(dump: &[u8]) -> Result<&[u8], &'static str> {
    let (mut rest, mut found) = (dump, None);
    while let Some(&[l0, l1, t0, t1]) = rest.first_chunk() {
        // In words of 4 bytes, with the header.
        let length = usize::from(u16::from_be_bytes([l0, l1])) * 4;
        let (segment, after) = rest
            .split_at_checked(length)
            .ok_or("a segment is longer than the dump")?;
        match u16::from_be_bytes([t0, t1]) {
            _ if length == 0 => return Err("a segment without a length"),
            kind if FIXED.iter().any(|(of, bytes)| *of == kind && *bytes != length) => {
                return Err("a segment of another length than published");
            }
            TERMINATE if after.is_empty() => return found.ok_or("no resource"),
            TERMINATE => return Err("bytes after the end"),
            NOTICE | COMMAND | REFERENCE | INFO => {}
            kind if RESOURCES.contains(&kind) && found.is_none() => found = Some(segment),
            kind if RESOURCES.contains(&kind) => return Err("two resources"),
            _ => return Err("an error, or a type that is not known"),
        }
        rest = after;
    }
    Err(if dump.is_empty() {
        "it did not fit the driver's buffer"
    } else {
        "no end"
    })
}

#[cfg(any(test, feature = "testkit"))]
impl QpContext {
    /// A dump that says this, as a firmware that keeps to the published layout would send it.
    pub fn encode(&self) -> Vec<u8> {
        let mut answer = [0; QUERY_QP];
        answer[QPC] = match self.state {
            QpState::SQE => 4,
            QpState::SQD => 5,
            state => state.0,
        } << 4;
        answer[QPC + 1] = u8::from(self.qp_type == QpType::UC);
        answer[QPC + 20..QPC + 24].copy_from_slice(&self.remote_qpn.to_be_bytes());
        answer[PATH + 5] = u8::from(self.grh) << 7;
        answer[PATH + 9] = self.sgid_index;
        answer[PATH + 16..PATH + 32].copy_from_slice(&self.remote_gid.0);
        answer[PATH + 37] = u8::try_from(self.port).unwrap_or(u8::MAX);
        let resource = [&[0; 4], &self.qpn.to_be_bytes(), &[0; 4], &answer[..]].concat();
        let segments = [
            (INFO, &[0; 12][..]),
            (COMMAND, &[0; 16]),
            (0x4000, &resource),
            (TERMINATE, &[]),
        ];
        let mut dump = Vec::new();
        for (kind, content) in segments {
            let words = u16::try_from(1 + content.len() / 4).unwrap_or(u16::MAX);
            dump.extend_from_slice(&words.to_be_bytes());
            dump.extend_from_slice(&kind.to_be_bytes());
            dump.extend_from_slice(content);
        }
        dump
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All bytes here are built from the published layout: none was recorded from a NIC.
    const CONTEXT: QpContext = QpContext {
        qpn: 0x01_0203,
        state: QpState::RTS,
        qp_type: QpType::RC,
        remote_qpn: 0x0a_0b0c,
        port: 1,
        grh: true,
        sgid_index: 3,
        remote_gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]),
    };
    /// Bytes before the resource: what an INFO and a COMMAND segment take.
    const BEFORE: usize = 16 + 20;

    #[test]
    fn fields_are_at_the_bits_of_the_published_layout() {
        // From mlx5_ifc.h, by the bits that it names, apart from the encoder.
        let mut dump = CONTEXT.encode();
        let query = BEFORE + 16;
        let qpc = query + 0xc0 / 8;
        let path = qpc + 0xc0 / 8;
        assert_eq!(dump.len(), BEFORE + 16 + 0x800 / 8 + 4);
        assert_eq!(
            dump[..8],
            [0, 4, 0xff, 0xfe, 0, 0, 0, 0],
            "as iproute2's example begins"
        );
        assert_eq!((dump[qpc], dump[qpc + 1]), (0x30, 0));
        assert_eq!(dump[qpc + 0xa8 / 8..qpc + 0xc0 / 8], [0x0a, 0x0b, 0x0c]);
        assert_eq!(dump[path + 0x28 / 8], 0x80);
        assert_eq!(dump[path + 0x48 / 8], 3);
        assert_eq!(dump[path + 0x80 / 8..path + 0x100 / 8], CONTEXT.remote_gid.0);
        assert_eq!(dump[path + 0x128 / 8], 1);
        // Neighbours of the fields change nothing.
        for at in [qpc, qpc + 20, path + 5] {
            dump[at] |= if at == qpc + 20 { 0xff } else { 0x0f };
        }
        assert_eq!(QpContext::decode(&dump), Ok(CONTEXT));
    }

    #[test]
    fn what_is_not_one_resource_in_a_row_of_segments_is_refused() {
        let dump = CONTEXT.encode();
        for cut in 0..dump.len() {
            assert!(QpContext::decode(&dump[..cut]).is_err(), "{cut}");
        }
        let resource = &dump[BEFORE..dump.len() - 4];
        let end = &dump[dump.len() - 4..];
        let why = |parts: &[&[u8]]| QpContext::decode(&parts.concat()).unwrap_err();
        assert_eq!(why(&[]), "it did not fit the driver's buffer");
        assert_eq!(why(&[end]), "no resource");
        assert_eq!(why(&[&dump, &[0; 4]]), "bytes after the end");
        assert_eq!(why(&[resource, resource, end]), "two resources");
        assert_eq!(why(&[&[0, 0, 0, 0], end]), "a segment without a length");
        assert_eq!(
            why(&[&[0, 1, 0xff, 0xfc], &dump]),
            "an error, or a type that is not known"
        );
        assert_eq!(
            why(&[
                &[0, 5, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                end
            ]),
            "the resource is too short"
        );
        let with = |at: usize, byte: u8| {
            let mut dump = dump.clone();
            dump[BEFORE + 16 + at] = byte;
            QpContext::decode(&dump).unwrap_err()
        };
        assert_eq!(with(0, 3), "the status of the query is not 0");
        assert_eq!(with(QPC, 0x90), "no state has this number");
        assert_eq!(with(QPC + 1, 2), "neither RC nor UC");
        // What the firmware adds behind, as addresses of the rings, is left alone.
        let mut longer = dump.clone();
        longer.splice(dump.len() - 4..dump.len() - 4, [7; 8]);
        longer[BEFORE + 1] += 2;
        assert_eq!(QpContext::decode(&longer), Ok(CONTEXT));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            qpn: u32, state in 0_u8..7, rc: bool, remote_qpn in 0_u32..1 << 24, port: u8, grh: bool, sgid_index: u8,
            gid: [u8; 16],
        ) {
            let context = QpContext {
                qpn, state: QpState(state), qp_type: QpType(if rc { 2 } else { 3 }), remote_qpn, port: port.into(), grh,
                sgid_index, remote_gid: Gid(gid),
            };
            prop_assert_eq!(QpContext::decode(&context.encode()), Ok(context));
        }

        /// A length that was changed moves all that follows: then the end does not come out.
        #[test]
        fn a_changed_length_is_never_read(segment in 0_usize..4, words: u16) {
            let mut dump = CONTEXT.encode();
            let at = [0, 16, BEFORE, dump.len() - 4][segment];
            prop_assume!(dump[at..at + 2] != words.to_be_bytes());
            dump[at..at + 2].copy_from_slice(&words.to_be_bytes());
            prop_assert!(QpContext::decode(&dump).is_err());
        }

        #[test]
        fn no_bytes_panic(dump in prop::collection::vec(any::<u8>(), 0..400), flips in prop::collection::vec((0_usize..400, any::<u8>()), 0..6)) {
            let _ = QpContext::decode(&dump);
            let mut dump = CONTEXT.encode();
            for (at, byte) in flips {
                if let Some(place) = dump.get_mut(at) {
                    *place = byte;
                }
            }
            let _ = QpContext::decode(&dump);
        }
    }
}
