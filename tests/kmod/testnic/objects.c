// SPDX-License-Identifier: GPL-2.0
/*
 * What a process can have of a device with uverbs: the device open, protection domains, completion queues, queue pairs and
 * memory regions. Queue pairs take what they are told by modify_qp, and move nothing; a test moves their PSNs. Nothing is done
 * with the memory of a region, but for a DMA-BUF, which is pinned and mapped as a real driver does it.
 */
#include <linux/mlx5/device.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <net/netlink.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <uapi/rdma/rdma_netlink.h>

#include "testnic.h"

struct tn_ucontext {
	struct ib_ucontext core;
};

struct tn_pd {
	struct ib_pd core;
};

struct tn_cq {
	struct ib_cq core;
};

struct tn_mr {
	struct ib_mr core;
	struct ib_umem *umem;	/* of a DMA-BUF; NULL for other memory */
};

struct tn_qp {
	struct ib_qp core;
	struct list_head node;
	enum ib_qp_state state;
	enum ib_mtu path_mtu;
	u32 dest;
	union ib_gid dgid;
	u8 sgid_index;
	u32 sq_psn, rq_psn;	/* of 24 bits; under qps_lock from the first modify on */
};

static DEFINE_MUTEX(qps_lock);
static LIST_HEAD(qps);		/* of all devices */

/* Linux 6.11 gave the creation of a CQ other arguments, and a later one an operation of its own for programs. */
#ifdef TN_CQ_BUNDLE
typedef struct uverbs_attr_bundle tn_cq_extra;
#else
typedef struct ib_udata tn_cq_extra;
#endif

static int alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	return 0;
}

static void dealloc_ucontext(struct ib_ucontext *context)
{
}

/* Without it the device could not go away while a process holds it open. */
static void disassociate_ucontext(struct ib_ucontext *context)
{
}

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr, tn_cq_extra *extra)
{
	cq->cqe = attr->cqe;
	return 0;
}

static int destroy_cq(struct ib_cq *cq, struct ib_udata *udata)
{
	return 0;
}

#ifdef TN_DMAH
#define DMAH struct ib_dmah *dmah,
#else
#define DMAH
#endif

static struct ib_mr *reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 address, int access, DMAH struct ib_udata *udata)
{
	struct tn_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	return mr ? &mr->core : ERR_PTR(-ENOMEM);
}

#ifdef TN_DMABUF
static struct ib_mr *reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 address, int fd, int access,
					DMAH struct uverbs_attr_bundle *attrs)
{
	struct ib_device *ib = pd->device;
	struct ib_umem_dmabuf *umem;
	struct tn_mr *mr;

	umem = ib_umem_dmabuf_get_pinned_with_dma_device(ib, ib->dev.parent, offset, length, fd, access);
	if (IS_ERR(umem))
		return ERR_CAST(umem);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr) {
		ib_umem_release(&umem->umem);
		return ERR_PTR(-ENOMEM);
	}
	mr->umem = &umem->umem;
	return &mr->core;
}
#endif

static int dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct tn_mr *mr = container_of(ib, struct tn_mr, core);

	ib_umem_release(mr->umem);
	kfree(mr);
	return 0;
}

static struct tn_qp *qp_of(struct ib_qp *qp)
{
	return container_of(qp, struct tn_qp, core);
}

static int create_qp(struct ib_qp *qp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	if (attr->qp_type != IB_QPT_RC && attr->qp_type != IB_QPT_DRIVER)
		return -EOPNOTSUPP;
	/* 0 and 1 are for MADs. */
	qp->qp_num = 16 + (atomic_inc_return(&tn_of(qp->device)->qps_made) & 0xffff);
	mutex_lock(&qps_lock);
	list_add(&qp_of(qp)->node, &qps);
	mutex_unlock(&qps_lock);
	return 0;
}

static int modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct tn_qp *qp = qp_of(ib);

	if (mask & IB_QP_STATE)
		qp->state = attr->qp_state;
	if (mask & IB_QP_PATH_MTU)
		qp->path_mtu = attr->path_mtu;
	if (mask & IB_QP_DEST_QPN)
		qp->dest = attr->dest_qp_num;
	if (mask & IB_QP_AV) {
		qp->dgid = rdma_ah_read_grh(&attr->ah_attr)->dgid;
		qp->sgid_index = rdma_ah_read_grh(&attr->ah_attr)->sgid_index;
	}
	mutex_lock(&qps_lock);
	if (mask & IB_QP_SQ_PSN)
		qp->sq_psn = attr->sq_psn;
	if (mask & IB_QP_RQ_PSN)
		qp->rq_psn = attr->rq_psn;
	mutex_unlock(&qps_lock);
	return 0;
}

/* Moves the PSNs of a queue pair, as so many packets do. */
int tn_qp_move(struct tn_device *device, u32 qpn, u32 sent, u32 received)
{
	struct tn_qp *qp;
	int ret = -ENOENT;

	mutex_lock(&qps_lock);
	list_for_each_entry(qp, &qps, node) {
		if (qp->core.device != &device->ib || qp->core.qp_num != qpn)
			continue;
		qp->sq_psn = (qp->sq_psn + sent) & 0xffffff;
		qp->rq_psn = (qp->rq_psn + received) & 0xffffff;
		ret = 0;
	}
	mutex_unlock(&qps_lock);
	return ret;
}

static int query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init)
{
	struct tn_qp *qp = qp_of(ib);

	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = qp->state;
	attr->cur_qp_state = qp->state;
	attr->path_mtu = qp->path_mtu;
	attr->dest_qp_num = qp->dest;
	attr->sq_psn = READ_ONCE(qp->sq_psn);
	attr->rq_psn = READ_ONCE(qp->rq_psn);
	init->qp_type = ib->qp_type;
	return 0;
}

static u8 *segment(u8 *at, u16 type, u16 bytes)
{
	MLX5_SET(resource_dump_segment_header, at, length_dw, bytes / 4);
	MLX5_SET(resource_dump_segment_header, at, segment_type, type);
	return at + bytes;
}

/*
 * What the firmware of mlx5 has of a queue pair. The layout of each segment is the kernel's own; that these come, and in this
 * order, is what public tools print.
 */
static int fill_raw(struct sk_buff *msg, struct ib_qp *ib)
{
	u16 bytes = MLX5_ST_SZ_BYTES(resource_dump_resource_segment) + MLX5_ST_SZ_BYTES(query_qp_out);
	struct tn_qp *qp = qp_of(ib);
	u8 *resource, *end, *raw;
	void *qpc, *path;
	int ret;

	if (ib->device->ops.driver_id != RDMA_DRIVER_MLX5)
		return -EOPNOTSUPP;
	raw = kzalloc(2 * PAGE_SIZE, GFP_KERNEL);
	if (!raw)
		return -ENOMEM;
	resource = segment(segment(raw, 0xfffe, MLX5_ST_SZ_BYTES(resource_dump_info_segment)),
			   0xfffa, MLX5_ST_SZ_BYTES(resource_dump_command_segment));
	end = segment(segment(resource, 0x4000, bytes), 0xfffb, MLX5_ST_SZ_BYTES(resource_dump_terminate_segment));
	MLX5_SET(resource_dump_resource_segment, resource, index1, ib->qp_num);
	qpc = MLX5_ADDR_OF(query_qp_out, MLX5_ADDR_OF(resource_dump_resource_segment, resource, payload), qpc);
	MLX5_SET(qpc, qpc, state, qp->state);
	MLX5_SET(qpc, qpc, st, MLX5_QPC_ST_RC);
	MLX5_SET(qpc, qpc, remote_qpn, qp->dest);
	path = MLX5_ADDR_OF(qpc, qpc, primary_address_path);
	MLX5_SET(ads, path, vhca_port_num, ib->port);
	MLX5_SET(ads, path, src_addr_index, qp->sgid_index);
	memcpy(MLX5_ADDR_OF(ads, path, rgid_rip), &qp->dgid, sizeof(qp->dgid));
	ret = nla_put(msg, RDMA_NLDEV_ATTR_RES_RAW, end - raw, raw);
	kfree(raw);
	return ret;
}

static int destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	mutex_lock(&qps_lock);
	list_del(&qp_of(qp)->node);
	mutex_unlock(&qps_lock);
	return 0;
}

const struct ib_device_ops tn_uverbs_ops = {
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = dealloc_ucontext,
	.disassociate_ucontext = disassociate_ucontext,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	/* Where there are both, the kernel calls the second and allows the command only where there is the first. */
	.create_cq = create_cq,
#ifdef TN_CQ_USER
	.create_user_cq = create_cq,
#endif
	.destroy_cq = destroy_cq,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
	.query_qp = query_qp,
	.destroy_qp = destroy_qp,
	.reg_user_mr = reg_user_mr,
#ifdef TN_DMABUF
	.reg_user_mr_dmabuf = reg_user_mr_dmabuf,
#endif
	.dereg_mr = dereg_mr,
	.fill_res_qp_entry_raw = fill_raw,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, tn_ucontext, core),
	INIT_RDMA_OBJ_SIZE(ib_pd, tn_pd, core),
	INIT_RDMA_OBJ_SIZE(ib_cq, tn_cq, core),
	INIT_RDMA_OBJ_SIZE(ib_qp, tn_qp, core),
};
