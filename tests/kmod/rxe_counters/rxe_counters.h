/* SPDX-License-Identifier: GPL-2.0 */
/*
 * rxe_counters: gives rdma_rxe the per-QP counters that it leaves out, for tests. The kernel's own rdma_counter code then
 * binds real QPs of real programs, by PID, by type or one by one, and netlink tells their values, as with mlx5.
 */
#ifndef RXE_COUNTERS_H
#define RXE_COUNTERS_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_counter.h>

/* Where values come from; what a test adds by debugfs comes on top. */
enum rc_source {
	RC_PSN,		/* sent_pkts and rcvd_pkts from the QP's packet sequence numbers: its real packets */
	RC_QPN,		/* QP number + index of the counter: tells whose counter is shown */
	RC_NONE,	/* nothing */
};

/* A device that has counters. */
struct rc_device {
	struct ib_device *ib;
	unsigned int live;		/* counters; under rc_lock */
	bool gone;			/* the last of them frees this; under rc_lock */
	atomic64_t sent, rcvd;		/* by QPs while they were bound */
	int (*port_stats)(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index);
	int (*modify_qp)(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
	struct rdma_hw_stats *shown;		/* the port's, once its table is ours */
	const struct rdma_stat_desc *descs;	/* its table before */
};

/* What stands behind a struct rdma_counter; found by its id. */
struct rc_counter {
	struct rc_device *device;
	struct rdma_counter *core;
	struct list_head qps;		/* under rc_lock */
	u64 sent, rcvd;			/* packets; under rc_lock */
	u64 sent_bytes, rcvd_bytes;	/* of whole packets; under rc_lock */
	u64 added[];			/* by debugfs, under rc_lock */
};

/* A bound QP. */
struct rc_qp {
	struct list_head node;
	struct ib_qp *qp;
	struct rc_counter *counter;
	u32 sq_psn, rq_psn;		/* counted up to here; under rc_lock */
};

extern struct mutex rc_lock;		/* of counters and QPs: the core's own lock is of one counter alone */
extern enum rc_source rc_source;
extern int rc_bind_error, rc_read_error;
extern unsigned int rc_max_counters;
extern bool rc_bytes, rc_optional;

/* counter.c */
extern const struct ib_device_ops rc_ops;
const struct rdma_stat_desc *rc_descs_of(const struct rdma_hw_stats *port);
int rc_find(const struct rdma_hw_stats *stats, const char *name);
void rc_psn_set(struct ib_qp *qp, const struct ib_qp_attr *attr, int mask);
int rc_add(const char *device, u32 qpn, const char *name, s64 n);
void rc_each_qp(void (*what)(const struct rc_qp *qp, void *data), void *data);
void rc_counters_exit(void);

/* main.c */
struct rc_device *rc_device_of(struct ib_device *ib);

/* control.c */
void rc_control_init(void);
void rc_control_exit(void);

#endif
