//! Programs that make records of SoftRoCE work requests: kprobes, attached only for a trace that asks for
//! them.

use crate::body::{wr, wr_cqe, wr_moves, wr_qps};

entry!(wr_created(res) wr_qps::created(res));
entry!(wr_post_send(qp) wr::doorbell(qp));
entry!(wr_completer(qp) wr::completing(qp));
entry!(wr_packet(qp) wr::arrived(qp));
entry!(wr_cq_post(cq, cqe) wr_cqe::posted(cq, cqe));
entry!(wr_queue_end(queue) wr::queue_ending(queue));
entry!(wr_modify(qp, attr, mask) wr_moves::modifying(qp, attr, mask as u32));
entry!(wr_destroy(qp) wr_moves::destroying(qp));
