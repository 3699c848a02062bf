//! Programs of the SoftRoCE data path: kprobes, which pin no module, and for the doorbell also fentry.
//! rdmatop's `loader/hooks/datapath.rs` explains why only the doorbell has it. The programs check whether
//! counting is on only for a QP that they do not know yet, because before counting begins they know none.

use crate::body::{rxe, rxe_cq, rxe_shared};

entry!(always kp_post_send / fe_post_send(qp) rxe::doorbell(qp));
entry!(always kp_completer(qp) rxe::completing(qp));
entry!(always kp_cq_post(cq, cqe) rxe_cq::posted(cq, cqe, rxe_shared::is_full(cq)));
entry!(always kp_xmit(qp, pkt) rxe::transmitting(qp, pkt));

// This runs rarely, so it is always a kprobe.
entry!(always rxe_queue_end(queue) rxe::queue_ending(queue));
