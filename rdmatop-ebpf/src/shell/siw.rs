//! Programs of the soft iWARP data path: kprobes, which pin no module.

use super::stack;
use crate::body::siw;

entry!(always siw_post_send(qp) siw::doorbell(qp));
entry!(always siw_activate(siw_qp) siw::activating(siw_qp));
entry!(always [stack] siw_sq_cqe(siw_qp, sqe, _bytes, status) siw::sent(siw_qp, sqe, status as u32, stack));
entry!(always [stack] siw_rq_cqe(siw_qp, _rqe, bytes, _stag, status) siw::received(siw_qp, bytes as u32, status as u32, stack));
entry!(always [stack] siw_no_room(cq, event) siw::no_room(cq, event as u32, stack));
entry!(always siw_read_end(wqe, opcode) siw::read_ending(wqe, opcode as u32));
entry!(always siw_qp_end(kref) siw::ending(kref));
