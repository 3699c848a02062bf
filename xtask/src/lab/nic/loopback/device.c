/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The device: what it says of itself, and the objects that carry nothing. */
#include <stdlib.h>
#include <string.h>

#include "loopback.h"

/* Without their macros, which lead to other functions of the library. */
#undef ibv_query_port

/* What `-device pvrdma,ibdev=` names. */
#define NAME "loopback0"

pthread_mutex_t loopback_lock = PTHREAD_MUTEX_INITIALIZER;
union ibv_gid loopback_gids[MAX_GIDS];
struct ibv_context loopback_context;
static struct ibv_device device;

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (!list)
		return NULL;
	strcpy(device.name, NAME);
	strcpy(device.dev_name, NAME);
	device.node_type = IBV_NODE_CA;
	device.transport_type = IBV_TRANSPORT_IB;
	list[0] = &device;
	if (count)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *unused)
{
	(void)unused;
	return NAME;
}

struct ibv_context *ibv_open_device(struct ibv_device *opened)
{
	loopback_context.device = opened;
	loopback_context.ops.post_send = post_send;
	loopback_context.ops.post_recv = post_recv;
	loopback_context.ops.post_srq_recv = post_srq_recv;
	loopback_context.ops.poll_cq = poll_cq;
	loopback_context.ops.req_notify_cq = req_notify_cq;
	loopback_context.cmd_fd = -1;
	loopback_context.async_fd = -1;
	return &loopback_context;
}

int ibv_close_device(struct ibv_context *context)
{
	(void)context;
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	memset(attr, 0, sizeof(*attr));
	attr->max_mr_size = 1ULL << 40;
	attr->max_qp = 4000;
	attr->max_qp_wr = 16384;
	attr->max_sge = MAX_SGE;
	attr->max_cq = 65536;
	attr->max_cqe = 1 << 20;
	attr->max_mr = 65000;
	attr->max_pd = 65536;
	attr->max_qp_rd_atom = 128;
	attr->max_qp_init_rd_atom = 128;
	attr->max_ah = 65536;
	attr->max_srq = 65536;
	attr->max_srq_wr = 16384;
	attr->max_srq_sge = MAX_SGE;
	attr->phys_port_cnt = 1;
	return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)compat;

	(void)context;
	(void)port;
	attr->state = IBV_PORT_ACTIVE;
	attr->max_mtu = IBV_MTU_4096;
	attr->active_mtu = IBV_MTU_1024;
	attr->gid_tbl_len = MAX_GIDS;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = 1 << 23;
	attr->active_width = 2;
	attr->active_speed = 32;
	attr->phys_state = 5;
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)context;
	(void)port;
	if (index < 0 || index >= MAX_GIDS)
		return -1;
	pthread_mutex_lock(&loopback_lock);
	*gid = loopback_gids[index];
	pthread_mutex_unlock(&loopback_lock);
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	if (pd)
		pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

/* The destination of a UD request is in the request; the handle carries nothing. */
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = calloc(1, sizeof(*ah));

	(void)attr;
	if (ah) {
		ah->context = pd->context;
		ah->pd = pd;
	}
	return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}
