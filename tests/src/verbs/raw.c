/* A connected queue pair of a device for which rdma-core has no library: the commands that such a library would write to the
 * device's file. All that is made lives as long as the file is open. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>

/* `cmd` begins with the header; a command without an answer has none. */
static int command(int fd, uint32_t number, void *cmd, size_t len, void *response, size_t response_len)
{
	struct ib_uverbs_cmd_hdr *header = cmd;
	uint64_t address = (uintptr_t)response;
	ssize_t written;

	header->command = number;
	header->in_words = len / 4;
	header->out_words = response_len / 4;
	if (response)
		memcpy(header + 1, &address, sizeof(address));
	written = write(fd, cmd, len);
	if (written < 0)
		return -errno;
	return (size_t)written == len ? 0 : -EIO;
}

#define CMD(type)                                                                                                            \
	struct {                                                                                                             \
		struct ib_uverbs_cmd_hdr header;                                                                             \
		struct type body;                                                                                            \
	}

static int modify(int fd, uint32_t qp, int state, uint32_t mask, struct ib_uverbs_modify_qp body)
{
	CMD(ib_uverbs_modify_qp) cmd = { .body = body };

	cmd.body.qp_handle = qp;
	cmd.body.qp_state = state;
	cmd.body.attr_mask = mask | IBV_QP_STATE;
	return command(fd, IB_USER_VERBS_CMD_MODIFY_QP, &cmd, sizeof(cmd), NULL, 0);
}

/* Opens `file` and has the kernel make a context for it. Returns the open file, or a negative errno; `step` is then the name of
 * the command that failed. */
int raw_context(const char *file, const char **step)
{
	CMD(ib_uverbs_get_context) context = { 0 };
	struct ib_uverbs_get_context_resp context_is;
	int rc, fd;

	*step = "open";
	fd = open(file, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*step = "GET_CONTEXT";
	rc = command(fd, IB_USER_VERBS_CMD_GET_CONTEXT, &context, sizeof(context), &context_is, sizeof(context_is));
	if (rc)
		return rc;
	close(context_is.async_fd);
	return fd;
}

/* A QP of type `type` of `port` of `file` in RTS, that is its own peer at `gid`. Returns the open file, or a negative errno; `step` is then the name of
 * the command that failed. */
int raw_connected_qp(const char *file, unsigned int type, unsigned int port, const uint8_t *gid, unsigned int sgid_index, unsigned int path_mtu,
		     uint32_t *qpn, const char **step)
{
	CMD(ib_uverbs_alloc_pd) pd = { 0 };
	CMD(ib_uverbs_create_cq) cq = { .body = { .cqe = 16, .comp_channel = -1 } };
	CMD(ib_uverbs_create_qp) qp = { .body = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1,
						  .qp_type = type } };
	struct ib_uverbs_alloc_pd_resp pd_is;
	struct ib_uverbs_create_cq_resp cq_is;
	struct ib_uverbs_create_qp_resp qp_is;
	struct ib_uverbs_modify_qp to = { 0 };
	int rc, fd;

	fd = raw_context(file, step);
	if (fd < 0)
		return fd;
	*step = "ALLOC_PD";
	rc = command(fd, IB_USER_VERBS_CMD_ALLOC_PD, &pd, sizeof(pd), &pd_is, sizeof(pd_is));
	if (rc)
		return rc;
	*step = "CREATE_CQ";
	rc = command(fd, IB_USER_VERBS_CMD_CREATE_CQ, &cq, sizeof(cq), &cq_is, sizeof(cq_is));
	if (rc)
		return rc;
	qp.body.pd_handle = pd_is.pd_handle;
	qp.body.send_cq_handle = cq_is.cq_handle;
	qp.body.recv_cq_handle = cq_is.cq_handle;
	*step = "CREATE_QP";
	rc = command(fd, IB_USER_VERBS_CMD_CREATE_QP, &qp, sizeof(qp), &qp_is, sizeof(qp_is));
	if (rc)
		return rc;
	to.dest.port_num = port;
	to.port_num = port;
	*step = "MODIFY_QP to INIT";
	rc = modify(fd, qp_is.qp_handle, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, to);
	if (rc)
		return rc;
	memcpy(to.dest.dgid, gid, sizeof(to.dest.dgid));
	to.dest.sgid_index = sgid_index;
	to.dest.hop_limit = 1;
	to.dest.is_global = 1;
	to.path_mtu = path_mtu;
	to.dest_qp_num = qp_is.qpn;
	to.max_dest_rd_atomic = 1;
	to.min_rnr_timer = 12;
	*step = "MODIFY_QP to RTR";
	rc = modify(fd, qp_is.qp_handle, IBV_QPS_RTR,
		    IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		    to);
	if (rc)
		return rc;
	to.timeout = 14;
	to.retry_cnt = 7;
	to.rnr_retry = 7;
	to.max_rd_atomic = 1;
	*step = "MODIFY_QP to RTS";
	rc = modify(fd, qp_is.qp_handle, IBV_QPS_RTS,
		    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, to);
	if (rc)
		return rc;
	*qpn = qp_is.qpn;
	return fd;
}

/* A DMA-BUF of a page of the host's memory, in the place of a GPU's. Returns its file, or a negative errno. */
int raw_dmabuf(void)
{
	struct udmabuf_create create = { .size = 4096, .flags = UDMABUF_FLAGS_CLOEXEC };
	int rc, device, memory;

	device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	memory = memfd_create("dmabuf", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	if (device < 0 || memory < 0 || ftruncate(memory, create.size) || fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK))
		return -errno;
	create.memfd = memory;
	rc = ioctl(device, UDMABUF_CREATE, &create);
	if (rc < 0)
		rc = -errno;
	close(memory);
	close(device);
	return rc;
}

/* Registers the DMA-BUF `dmabuf`, or a page of this process where it is -1. Returns a negative errno, or 0. */
int raw_register(int fd, int dmabuf)
{
	static uint8_t page[4096] __attribute__((aligned(4096)));
	CMD(ib_uverbs_alloc_pd) pd = { 0 };
	CMD(ib_uverbs_reg_mr) mr = { .body = { .start = (uintptr_t)page, .length = sizeof(page), .hca_va = (uintptr_t)page } };
	struct ib_uverbs_alloc_pd_resp pd_is;
	struct ib_uverbs_reg_mr_resp mr_is;
	uint32_t lkey, rkey;
	int rc;

	rc = command(fd, IB_USER_VERBS_CMD_ALLOC_PD, &pd, sizeof(pd), &pd_is, sizeof(pd_is));
	if (rc)
		return rc;
	if (dmabuf < 0) {
		mr.body.pd_handle = pd_is.pd_handle;
		return command(fd, IB_USER_VERBS_CMD_REG_MR, &mr, sizeof(mr), &mr_is, sizeof(mr_is));
	}

	struct {
		struct ib_uverbs_ioctl_hdr header;
		struct ib_uverbs_attr attrs[9];
	} call = {
		.header = { .length = sizeof(call), .object_id = UVERBS_OBJECT_MR, .method_id = UVERBS_METHOD_REG_DMABUF_MR,
			    .num_attrs = 9 },
		.attrs = {
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_HANDLE, .flags = UVERBS_ATTR_F_MANDATORY },
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, .flags = UVERBS_ATTR_F_MANDATORY, .data = pd_is.pd_handle },
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_OFFSET, .len = 8, .flags = UVERBS_ATTR_F_MANDATORY },
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_LENGTH, .len = 8, .flags = UVERBS_ATTR_F_MANDATORY, .data = 4096 },
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_IOVA, .len = 8, .flags = UVERBS_ATTR_F_MANDATORY },
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_FD, .len = 4, .flags = UVERBS_ATTR_F_MANDATORY, .data_s64 = dmabuf },
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, .len = 4, .flags = UVERBS_ATTR_F_MANDATORY },
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, .len = 4, .flags = UVERBS_ATTR_F_MANDATORY,
			  .data = (uintptr_t)&lkey },
			{ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, .len = 4, .flags = UVERBS_ATTR_F_MANDATORY,
			  .data = (uintptr_t)&rkey },
		},
	};
	return ioctl(fd, RDMA_VERBS_IOCTL, &call) ? -errno : 0;
}

/* Calls a method of mlx5's DEVX objects. Returns a negative errno, or 0. */
static int devx(int fd, uint16_t method, struct ib_uverbs_attr *attrs, uint16_t count)
{
	struct {
		struct ib_uverbs_ioctl_hdr header;
		struct ib_uverbs_attr attrs[3];
	} call = { .header = { .object_id = MLX5_IB_OBJECT_DEVX_OBJ, .method_id = method, .num_attrs = count,
			       .driver_id = RDMA_DRIVER_MLX5 } };
	int rc;

	call.header.length = sizeof(call.header) + count * sizeof(*attrs);
	memcpy(call.attrs, attrs, count * sizeof(*attrs));
	rc = ioctl(fd, RDMA_VERBS_IOCTL, &call);
	memcpy(attrs, call.attrs, count * sizeof(*attrs));
	return rc ? -errno : 0;
}

/* Has the device make an object past ib_core by a command with this opcode. Returns its handle, or a negative errno. */
int raw_devx_create(int fd, uint16_t opcode)
{
	uint8_t in[16] = { opcode >> 8, opcode }, out[16];
	struct ib_uverbs_attr attrs[] = {
		{ .attr_id = MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, .flags = UVERBS_ATTR_F_MANDATORY },
		{ .attr_id = MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, .len = sizeof(in), .flags = UVERBS_ATTR_F_MANDATORY,
		  .data = (uintptr_t)in },
		{ .attr_id = MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, .len = sizeof(out), .flags = UVERBS_ATTR_F_MANDATORY,
		  .data = (uintptr_t)out },
	};
	int rc = devx(fd, MLX5_IB_METHOD_DEVX_OBJ_CREATE, attrs, 3);

	return rc ? rc : (int)attrs[0].data;
}

/* Asks it to change one by a command to an address that takes no answer. Returns a negative errno, though the command was
 * carried out. */
int raw_devx_modify(int fd, int handle)
{
	/* RST2INIT_QP */
	uint8_t in[16] = { 0x05, 0x02 };
	struct ib_uverbs_attr attrs[] = {
		{ .attr_id = MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, .flags = UVERBS_ATTR_F_MANDATORY, .data = handle },
		{ .attr_id = MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, .len = sizeof(in), .flags = UVERBS_ATTR_F_MANDATORY,
		  .data = (uintptr_t)in },
		{ .attr_id = MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, .len = 16, .flags = UVERBS_ATTR_F_MANDATORY, .data = 8 },
	};

	return devx(fd, MLX5_IB_METHOD_DEVX_OBJ_MODIFY, attrs, 3);
}

/* Has it destroy one. */
int raw_devx_destroy(int fd, int handle)
{
	struct ib_uverbs_attr attr = { .attr_id = MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, .flags = UVERBS_ATTR_F_MANDATORY,
				       .data = handle };

	return devx(fd, MLX5_IB_METHOD_DEVX_OBJ_DESTROY, &attr, 1);
}
