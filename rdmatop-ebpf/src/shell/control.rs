//! Programs of the control plane. Each hook has a kprobe or kretprobe program, which pins no module and needs
//! no module BTF. Hooks on calls that a process makes also have an fentry or fexit program, which costs the
//! process less but pins the module. rdmatop's list of hooks (`loader/hooks/control.rs`) names both.

use crate::{
    body::{
        object::{self, Object},
        qp, restrack, verbs, write,
    },
    slots,
};

entry!(restrack_add / fe_restrack_add(res) restrack::added(res));

entry!(modify_qp / fe_modify_qp(qp, attr, mask) qp::modifying(qp, attr, mask as u32));
ret!(modify_qp_ret / fx_modify_qp(rc) qp::modified(rc));

entry!(destroy_qp / fe_destroy_qp(qp) qp::destroying(qp));
ret!(destroy_qp_ret / fx_destroy_qp(rc) qp::destroyed(rc));

entry!(dereg_mr / fe_dereg_mr(mr) object::destroying(Object::Mr, mr));
ret!(dereg_mr_ret / fx_dereg_mr(rc) object::destroyed(Object::Mr, rc));

entry!(destroy_cq / fe_destroy_cq(cq) object::destroying(Object::Cq, cq));
ret!(destroy_cq_ret / fx_destroy_cq(rc) object::destroyed(Object::Cq, rc));

entry!(free_cq(cq) object::freed(Object::Cq, cq));

entry!(qp_event(event) qp::async_event(event));

entry!(cmd_verbs / fe_cmd_verbs(file, header, attrs) verbs::ioctl_entered(file, header, attrs));
ret!(cmd_verbs_ret / fx_cmd_verbs(rc) verbs::ioctl_returned(rc));

entry!(always uverbs_write(_file, buffer) write::entered(buffer));
ret!(uverbs_write_ret(rc) write::returned(rc));

entry!(always ucma_write(_file, buffer) write::cm_entered(buffer));
ret!(ucma_write_ret(rc) write::cm_returned(rc));

entry!(query_qp(qp) slots::asked(qp));

entry!(dmabuf_map(_umem) verbs::dmabuf_mapped());
