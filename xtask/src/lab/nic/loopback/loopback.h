/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An RDMA device for QEMU's pvrdma, on a machine without any: put before QEMU by LD_PRELOAD, this stands in for the calls of
 * libibverbs that QEMU's backend makes (hw/rdma/rdma_backend.c of QEMU 7.2). All queue pairs live in QEMU's process, and what
 * one sends another receives. The guest's driver and library do not know: their work requests go through rings in the
 * program's memory and a doorbell page, and never enter the guest's kernel.
 *
 * What QEMU's device itself cannot do is not here: it posts every request as a SEND.
 */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#define MAX_SGE 32
#define MAX_GIDS 32

/* QEMU calls from the threads of the virtual CPUs and from one that waits for completions. */
extern pthread_mutex_t loopback_lock;

/* Index 0 stays empty: QEMU takes it for "none". */
extern union ibv_gid loopback_gids[MAX_GIDS];

extern struct ibv_context loopback_context;

/* A work request until its turn. */
struct request {
	struct request *next;
	uint64_t id;
	uint32_t dest_qpn;	/* UD */
	int sges;
	struct ibv_sge sge[MAX_SGE];
};

struct queue {
	struct request *first;
	struct request *last;
};

/* memory.c */
void *memory_at(const struct ibv_sge *sge, uint32_t length);

/* completion.c */
void complete(struct ibv_cq *cq, const struct ibv_wc *wc);
int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* transfer.c */
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
