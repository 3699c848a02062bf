/* A flat C face of libibverbs for Rust: no structure crosses the border except struct shim_wc.
 * Calls that return int return 0 or more, or a negative errno. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>

struct shim_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t byte_len;
	uint32_t qp_num;
};

static int negative(int rc)
{
	/* Most verbs return a positive errno, some return -1 and set errno. */
	if (rc > 0)
		return -rc;
	return rc < 0 ? (errno ? -errno : -EIO) : 0;
}

struct ibv_context *shim_open(const char *name, int *err)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list;
	int i, count = 0;

	errno = 0;
	list = ibv_get_device_list(&count);
	*err = -(errno ? errno : ENODEV);
	if (!list)
		return NULL;
	*err = -ENODEV;
	for (i = 0; i < count; i++) {
		if (strcmp(ibv_get_device_name(list[i]), name))
			continue;
		errno = 0;
		context = ibv_open_device(list[i]);
		*err = context ? 0 : -(errno ? errno : EIO);
		break;
	}
	ibv_free_device_list(list);
	return context;
}

int shim_close(struct ibv_context *context) { return negative(ibv_close_device(context)); }

int shim_cmd_fd(struct ibv_context *context) { return context->cmd_fd; }

/*
 * From now on this process says that it posts with another function, or with a place behind its beginning.
 * Nothing is posted then.
 */
void shim_say(struct ibv_context *context, int own, size_t behind)
{
	char *place = own ? (char *)context->ops.post_send : (char *)write;

	context->ops.post_send = (void *)(place + behind);
}

/* Claims that the function for receives is the one for sends, and the other way round. */
void shim_exchange(struct ibv_context *context)
{
	void *send = (void *)context->ops.post_send;

	context->ops.post_send = (void *)context->ops.post_recv;
	context->ops.post_recv = send;
}

static struct ibv_context_ops provider;
static uint64_t wrapped_calls;

static int wrapped_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int rc = provider.post_send(qp, wr, bad);

	wrapped_calls++;
	return rc;
}

/* Compiled as a jump, so that both functions return to the caller. */
static int wrapped_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	wrapped_calls++;
	return provider.post_recv(qp, wr, bad);
}

/* Looks a second time where there was nothing. */
static int wrapped_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	int count = provider.poll_cq(cq, most, wc);

	wrapped_calls++;
	return count ? count : provider.poll_cq(cq, most, wc);
}

/* Puts functions of this program before the provider's, as profilers do. */
void shim_wrap(struct ibv_context *context)
{
	provider = context->ops;
	context->ops.post_send = wrapped_post_send;
	context->ops.post_recv = wrapped_post_recv;
	context->ops.poll_cq = wrapped_poll_cq;
}

/* How often these functions were called. */
uint64_t shim_wrapped_calls(void) { return wrapped_calls; }

struct ibv_pd *shim_alloc_pd(struct ibv_context *context) { return ibv_alloc_pd(context); }

int shim_dealloc_pd(struct ibv_pd *pd) { return negative(ibv_dealloc_pd(pd)); }

struct ibv_cq *shim_create_cq(struct ibv_context *context, int cqe, int *err)
{
	struct ibv_cq *cq;

	errno = 0;
	cq = ibv_create_cq(context, cqe, NULL, NULL, 0);
	*err = cq ? 0 : -(errno ? errno : EIO);
	return cq;
}

/* A CQ that shim_take() takes from. It begins like any other. */
struct ibv_cq *shim_create_extended_cq(struct ibv_context *context, int cqe, int *err)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = (uint32_t)cqe, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq;

	errno = 0;
	cq = ibv_create_cq_ex(context, &attr);
	*err = cq ? 0 : -(errno ? errno : EIO);
	return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

int shim_cq_capacity(struct ibv_cq *cq) { return cq->cqe; }

int shim_destroy_cq(struct ibv_cq *cq) { return negative(ibv_destroy_cq(cq)); }

struct ibv_mr *shim_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int *err)
{
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr(pd, addr, length,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_ATOMIC);
	*err = mr ? 0 : -(errno ? errno : EIO);
	return mr;
}

int shim_dereg_mr(struct ibv_mr *mr) { return negative(ibv_dereg_mr(mr)); }

uint32_t shim_lkey(struct ibv_mr *mr) { return mr->lkey; }

uint32_t shim_rkey(struct ibv_mr *mr) { return mr->rkey; }

int shim_gid(struct ibv_context *context, int index, uint8_t *gid)
{
	union ibv_gid raw;
	int rc = ibv_query_gid(context, 1, index, &raw);

	memcpy(gid, raw.raw, sizeof(raw.raw));
	return negative(rc);
}

struct ibv_qp *shim_create_qp(struct ibv_pd *pd, struct ibv_cq *sends, struct ibv_cq *receives, uint32_t max_wr,
			      int *err)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = sends,
		.recv_cq = receives,
		.cap = { .max_send_wr = max_wr, .max_recv_wr = max_wr, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 0, /* each post says whether it is signalled */
	};
	struct ibv_qp *qp;

	errno = 0;
	qp = ibv_create_qp(pd, &attr);
	*err = qp ? 0 : -(errno ? errno : EIO);
	return qp;
}

struct ibv_qp *shim_create_ud_qp(struct ibv_pd *pd, struct ibv_cq *cq, int *err)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
	};
	struct ibv_qp *qp;

	errno = 0;
	qp = ibv_create_qp(pd, &attr);
	*err = qp ? 0 : -(errno ? errno : EIO);
	return qp;
}

/* Joins or leaves the group of a multicast GID. */
int shim_mcast(struct ibv_qp *qp, int attach)
{
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } };

	return negative(attach ? ibv_attach_mcast(qp, &group, 0) : ibv_detach_mcast(qp, &group, 0));
}

int shim_req_notify(struct ibv_cq *cq) { return negative(ibv_req_notify_cq(cq, 0)); }

/* The same as rdma-core before 22 sent it: by write(). A handle that does not exist makes it fail. */
int shim_req_notify_by_write(struct ibv_cq *cq, int wrong)
{
	struct {
		uint32_t command;
		uint16_t in_words;
		uint16_t out_words;
		uint32_t cq_handle;
		uint32_t solicited_only;
	} request = { .command = 23, .in_words = sizeof(request) / 4, .cq_handle = wrong ? 0x7fffffff : cq->handle };

	return write(cq->context->cmd_fd, &request, sizeof(request)) == sizeof(request) ? 0 : -errno;
}

int shim_destroy_qp(struct ibv_qp *qp) { return negative(ibv_destroy_qp(qp)); }

uint32_t shim_qpn(struct ibv_qp *qp) { return qp->qp_num; }

int shim_to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};

	return negative(ibv_modify_qp(qp, &attr,
				      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

/* A few packets before the largest PSN of 24 bits: what counts packets by their PSN goes round it in each test. */
#define FIRST_PSN 0xfffff8

int shim_to_rtr(struct ibv_qp *qp, uint32_t dest_qpn, const uint8_t *dgid, int sgid_index, int path_mtu)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = path_mtu,
		.dest_qp_num = dest_qpn,
		.rq_psn = FIRST_PSN,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = sgid_index, .hop_limit = 1 } },
	};

	memcpy(attr.ah_attr.grh.dgid.raw, dgid, sizeof(attr.ah_attr.grh.dgid.raw));
	return negative(ibv_modify_qp(qp, &attr,
				      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

int shim_to_rts(struct ibv_qp *qp, int retry_cnt, int timeout)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = FIRST_PSN,
		.timeout = timeout,
		.retry_cnt = retry_cnt,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	return negative(ibv_modify_qp(qp, &attr,
				      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

#define QKEY 0x1234

/* Brings a UD QP to RTS. */
int shim_ud_to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .sq_psn = FIRST_PSN };
	int rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

	attr.qp_state = IBV_QPS_RTR;
	rc = rc ? rc : ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	return negative(rc ? rc : ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

struct ibv_ah *shim_create_ah(struct ibv_pd *pd, const uint8_t *dgid, int sgid_index, int *err)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1, .grh = { .sgid_index = sgid_index, .hop_limit = 1 },
	};
	struct ibv_ah *ah;

	memcpy(attr.grh.dgid.raw, dgid, sizeof(attr.grh.dgid.raw));
	errno = 0;
	ah = ibv_create_ah(pd, &attr);
	*err = ah ? 0 : -(errno ? errno : EIO);
	return ah;
}

int shim_destroy_ah(struct ibv_ah *ah) { return negative(ibv_destroy_ah(ah)); }

/* Posts a signalled SEND to a UD QP. */
int shim_post_ud(struct ibv_qp *qp, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey, struct ibv_ah *ah,
		 uint32_t dest_qpn)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = dest_qpn, .remote_qkey = QKEY },
	};
	struct ibv_send_wr *bad;

	return negative(ibv_post_send(qp, &wr, &bad));
}

int shim_to_state(struct ibv_qp *qp, int state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return negative(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

int shim_to_sqd_with_event(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };

	return negative(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
}

int shim_post_send(struct ibv_qp *qp, uint64_t wr_id, int opcode, uint64_t addr, uint32_t length, uint32_t lkey,
		   uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = remote_addr, .rkey = rkey },
	};
	struct ibv_send_wr *bad;

	return negative(ibv_post_send(qp, &wr, &bad));
}

/* As shim_post_send, with send flags and immediate data of the caller's choice. */
int shim_post_as(struct ibv_qp *qp, uint64_t wr_id, int opcode, int send_flags, uint32_t imm, uint64_t addr, uint32_t length,
		 uint32_t lkey, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = send_flags,
		.imm_data = htobe32(imm),
		.wr.rdma = { .remote_addr = remote_addr, .rkey = rkey },
	};
	struct ibv_send_wr *bad;

	return negative(ibv_post_send(qp, &wr, &bad));
}

enum { LIST = 64 };

/* Posts a list of RDMA WRITEs, each a byte longer than the one before. Number `bad_at` has more segments than any QP takes.
 * Returns how many of them the provider has accepted, which is up to the one that it names. */
int shim_post_list(struct ibv_qp *qp, int count, int bad_at, uint64_t addr, uint32_t length, uint32_t lkey,
		   uint64_t remote_addr, uint32_t rkey)
{
	/* Providers add up the lengths before they count. */
	static struct ibv_sge many[1000];
	struct ibv_send_wr wr[LIST] = {0}, *bad = NULL;
	struct ibv_sge sge[LIST];

	if (count < 1 || count > LIST)
		return -EINVAL;
	for (int i = 0; i < count; i++) {
		sge[i] = (struct ibv_sge){ .addr = addr, .length = length + i, .lkey = lkey };
		wr[i] = (struct ibv_send_wr){
			.wr_id = i,
			.next = i + 1 < count ? &wr[i + 1] : NULL,
			.sg_list = i == bad_at ? many : &sge[i],
			.num_sge = i == bad_at ? 1000 : 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = remote_addr, .rkey = rkey },
		};
	}
	return ibv_post_send(qp, wr, &bad) ? (bad ? (int)(bad - wr) : 0) : count;
}

/* Posts a list of receives. Returns how many of them the provider has accepted. */
int shim_post_recv_list(struct ibv_qp *qp, int count, uint64_t addr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };
	struct ibv_recv_wr wr[LIST] = {0}, *bad = NULL;

	if (count < 1 || count > LIST)
		return -EINVAL;
	for (int i = 0; i < count; i++)
		wr[i] = (struct ibv_recv_wr){
			.wr_id = i, .next = i + 1 < count ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
		};
	return ibv_post_recv(qp, wr, &bad) ? (bad ? (int)(bad - wr) : 0) : count;
}

int shim_post_recv(struct ibv_qp *qp, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	return negative(ibv_post_recv(qp, &wr, &bad));
}

/* A QP with the ibv_wr_* calls. */
struct ibv_qp *shim_create_extended_qp(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t max_wr, int *err)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = max_wr,
			 .max_recv_wr = 1,
			 .max_send_sge = 2,
			 .max_recv_sge = 1,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	};
	struct ibv_qp *qp;

	errno = 0;
	qp = ibv_create_qp_ex(pd->context, &attr);
	*err = qp ? 0 : -(errno ? errno : EIO);
	return qp;
}

void shim_wr_start(struct ibv_qp *qp) { ibv_wr_start(ibv_qp_to_qp_ex(qp)); }

int shim_wr_complete(struct ibv_qp *qp) { return negative(ibv_wr_complete(ibv_qp_to_qp_ex(qp))); }

void shim_wr_abort(struct ibv_qp *qp) { ibv_wr_abort(ibv_qp_to_qp_ex(qp)); }

/* Begins a work request of an opcode of shim_create_extended_qp. */
void shim_wr_begin(struct ibv_qp *qp, uint64_t wr_id, int opcode, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	ex->wr_id = wr_id;
	ex->wr_flags = IBV_SEND_SIGNALED;
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
		return ibv_wr_rdma_write(ex, rkey, remote_addr);
	case IBV_WR_SEND:
		return ibv_wr_send(ex);
	case IBV_WR_SEND_WITH_IMM:
		return ibv_wr_send_imm(ex, 7);
	case IBV_WR_RDMA_READ:
		return ibv_wr_rdma_read(ex, rkey, remote_addr);
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return ibv_wr_atomic_cmp_swp(ex, rkey, remote_addr, 0, 1);
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return ibv_wr_atomic_fetch_add(ex, rkey, remote_addr, 1);
	}
}

/* Gives its data: one segment, inline, or either as a list of two halves. */
void shim_wr_data(struct ibv_qp *qp, int how, uint64_t addr, uint32_t length, uint32_t lkey)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	uint32_t half = length / 2;
	struct ibv_sge sges[2] = { { addr, half, lkey }, { addr + half, length - half, lkey } };
	struct ibv_data_buf bufs[2] = { { (void *)addr, half }, { (void *)(addr + half), length - half } };

	switch (how) {
	case 0:
		return ibv_wr_set_sge(ex, lkey, addr, length);
	case 1:
		return ibv_wr_set_inline_data(ex, (void *)addr, length);
	case 2:
		return ibv_wr_set_sge_list(ex, 2, sges);
	case 3:
		return ibv_wr_set_inline_data_list(ex, 2, bufs);
	}
}

int shim_poll_cq(struct ibv_cq *cq, struct shim_wc *out)
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(cq, 1, &wc);

	if (count <= 0)
		return count < 0 ? -EIO : 0;
	out->wr_id = wc.wr_id;
	out->status = wc.status;
	out->opcode = wc.opcode;
	out->byte_len = wc.byte_len;
	out->qp_num = wc.qp_num;
	return 1;
}

static void read_ex(struct ibv_cq_ex *cq, struct shim_wc *out)
{
	out->wr_id = cq->wr_id;
	out->status = cq->status;
	out->opcode = ibv_wc_read_opcode(cq);
	out->byte_len = ibv_wc_read_byte_len(cq);
	out->qp_num = ibv_wc_read_qp_num(cq);
}

/* Takes `most` completions from a CQ of shim_create_extended_cq(), or none if there is none. All of them must be there: librxe before
 * rdma-core 55 gives back the CQ when ibv_next_poll() finds nothing, and loses count at the ibv_end_poll() that follows. So where
 * `is_last`, which leaves an empty CQ behind, that finds nothing, and is the last call. Returns how many it took. */
int shim_take(struct ibv_cq *cq, struct shim_wc *out, int most, int is_last)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = { 0 };
	int count = 0, rc = ibv_start_poll(ex, &attr);

	if (rc)
		return rc == ENOENT ? 0 : negative(rc);
	read_ex(ex, &out[count++]);
	while (count < most) {
		if (ibv_next_poll(ex))
			return -EPROTO;
		read_ex(ex, &out[count++]);
	}
	if (is_last)
		return ibv_next_poll(ex) == ENOENT ? count : -EPROTO;
	ibv_end_poll(ex);
	return count;
}

/* Waits for one asynchronous event and acknowledges it. 1 = got one, 0 = none in time. */
int shim_async_event(struct ibv_context *context, int timeout_ms, uint32_t *type, uint32_t *qpn)
{
	struct pollfd pollfd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	int rc = poll(&pollfd, 1, timeout_ms);

	if (rc <= 0)
		return rc < 0 ? -errno : 0;
	if (ibv_get_async_event(context, &event))
		return -errno;
	*type = event.event_type;
	switch (event.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		*qpn = event.element.qp->qp_num;
		break;
	default:
		*qpn = 0;
	}
	ibv_ack_async_event(&event);
	return 1;
}
