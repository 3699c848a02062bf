/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Queue pairs: what one sends is copied into what another has posted to receive. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "loopback.h"

#define MAX_QPS 4096
#define FIRST_QPN 0x11
/* Bytes that a UD receive has before the message, for the GRH. */
#define GRH 40
#define MAX_MESSAGE (8 << 20)

struct shared_queue {
	struct ibv_srq srq;
	struct queue receives;
};

struct pair {
	struct ibv_qp qp;
	struct ibv_qp_init_attr init;
	struct queue sends;
	struct queue receives;
	enum ibv_qp_state state;
	uint32_t dest_qpn;
};

static struct pair *pairs[MAX_QPS];
static char message[MAX_MESSAGE];	/* on its way; under the lock */

static void push(struct queue *queue, struct request *request)
{
	request->next = NULL;
	if (queue->first)
		queue->last->next = request;
	else
		queue->first = request;
	queue->last = request;
}

static void pop(struct queue *queue)
{
	struct request *request = queue->first;

	queue->first = request->next;
	free(request);
}

static void clear(struct queue *queue)
{
	while (queue->first)
		pop(queue);
}

static struct request *copy(uint64_t id, const struct ibv_sge *list, int count)
{
	struct request *request = calloc(1, sizeof(*request));

	if (!request || count > MAX_SGE) {
		free(request);
		return NULL;
	}
	request->id = id;
	request->sges = count;
	memcpy(request->sge, list, (size_t)count * sizeof(*list));
	return request;
}

/* Copies between the elements of a request and `message`; false when memory is not registered, or too small. */
static bool gather(const struct request *request, uint32_t at, uint32_t *length)
{
	int i;

	for (i = 0; i < request->sges; i++) {
		uint32_t part = request->sge[i].length;
		void *from = memory_at(&request->sge[i], part);

		if (!from || part > MAX_MESSAGE - at)
			return false;
		memcpy(message + at, from, part);
		at += part;
	}
	*length = at;
	return true;
}

static bool scatter(const struct request *request, uint32_t length)
{
	uint32_t at = 0;
	int i;

	for (i = 0; i < request->sges && at < length; i++) {
		uint32_t part = request->sge[i].length < length - at ? request->sge[i].length : length - at;
		void *to = memory_at(&request->sge[i], part);

		if (!to)
			return false;
		memcpy(to, message + at, part);
		at += part;
	}
	return at == length;
}

/* Carries the first send of a pair over; false when it has to wait: RC waits for its peer and for a receive. */
static bool carry(struct pair *sender)
{
	struct request *send = sender->sends.first;
	bool ud = sender->qp.qp_type == IBV_QPT_UD;
	uint32_t dest_qpn = ud ? send->dest_qpn : sender->dest_qpn;
	struct pair *receiver = dest_qpn < MAX_QPS ? pairs[dest_qpn] : NULL;
	struct queue *receives = NULL;
	uint32_t length = 0;
	struct ibv_wc sent = { .wr_id = send->id, .opcode = IBV_WC_SEND, .qp_num = sender->qp.qp_num };

	if (receiver && receiver->state >= IBV_QPS_RTR)
		receives = receiver->qp.srq ? &((struct shared_queue *)receiver->qp.srq)->receives : &receiver->receives;
	if (!receives || !receives->first) {
		if (!ud)
			return false;
		/* A datagram that nobody takes is lost. */
	} else if (memset(message, 0, GRH), !gather(send, ud ? GRH : 0, &length)) {
		sent.status = IBV_WC_LOC_PROT_ERR;
	} else {
		struct ibv_wc received = {
			.wr_id = receives->first->id, .opcode = IBV_WC_RECV, .qp_num = receiver->qp.qp_num,
			.src_qp = sender->qp.qp_num, .byte_len = length, .wc_flags = ud ? IBV_WC_GRH : 0,
		};

		if (!scatter(receives->first, length))
			received.status = sent.status = IBV_WC_LOC_LEN_ERR;
		pop(receives);
		complete(receiver->qp.recv_cq, &received);
	}
	/* QEMU asks for the completion of every send. */
	complete(sender->qp.send_cq, &sent);
	pop(&sender->sends);
	return true;
}

/* A send, a receive or a new state may let any pair go on. Under the lock. */
static void carry_all(void)
{
	bool moved;
	int i;

	do {
		moved = false;
		for (i = FIRST_QPN; i < MAX_QPS; i++)
			while (pairs[i] && pairs[i]->state == IBV_QPS_RTS && pairs[i]->sends.first && carry(pairs[i]))
				moved = true;
	} while (moved);
}

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct request *request;
	int ret = 0;

	pthread_mutex_lock(&loopback_lock);
	for (; wr; wr = wr->next) {
		request = copy(wr->wr_id, wr->sg_list, wr->num_sge);
		if (!request) {
			*bad = wr;
			ret = ENOMEM;
			break;
		}
		if (qp->qp_type == IBV_QPT_UD)
			request->dest_qpn = wr->wr.ud.remote_qpn;
		push(&((struct pair *)qp)->sends, request);
	}
	carry_all();
	pthread_mutex_unlock(&loopback_lock);
	return ret;
}

static int receive_into(struct queue *queue, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct request *request;
	int ret = 0;

	pthread_mutex_lock(&loopback_lock);
	for (; wr; wr = wr->next) {
		request = copy(wr->wr_id, wr->sg_list, wr->num_sge);
		if (!request) {
			*bad = wr;
			ret = ENOMEM;
			break;
		}
		push(queue, request);
	}
	carry_all();
	pthread_mutex_unlock(&loopback_lock);
	return ret;
}

int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return receive_into(&((struct pair *)qp)->receives, wr, bad);
}

int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return receive_into(&((struct shared_queue *)srq)->receives, wr, bad);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	/* Numbers go on, so that a message for a pair that is gone does not reach the next one. */
	static uint32_t last = FIRST_QPN - 1;
	struct pair *pair = calloc(1, sizeof(*pair));
	uint32_t i, qpn = 0;

	if (!pair)
		return NULL;
	pthread_mutex_lock(&loopback_lock);
	for (i = 1; i <= MAX_QPS - FIRST_QPN && !qpn; i++) {
		uint32_t at = FIRST_QPN + (last - FIRST_QPN + i) % (MAX_QPS - FIRST_QPN);

		if (!pairs[at])
			qpn = last = at;
	}
	if (qpn)
		pairs[qpn] = pair;
	pthread_mutex_unlock(&loopback_lock);
	if (!qpn) {
		free(pair);
		errno = ENOMEM;
		return NULL;
	}
	pair->init = *init;
	pair->qp = (struct ibv_qp) {
		.context = pd->context, .pd = pd, .send_cq = init->send_cq, .recv_cq = init->recv_cq, .srq = init->srq,
		.qp_num = qpn, .handle = qpn, .qp_type = init->qp_type,
	};
	return &pair->qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct pair *pair = (struct pair *)qp;

	pthread_mutex_lock(&loopback_lock);
	if (mask & IBV_QP_STATE)
		pair->state = attr->qp_state;
	if (mask & IBV_QP_DEST_QPN)
		pair->dest_qpn = attr->dest_qp_num;
	carry_all();
	pthread_mutex_unlock(&loopback_lock);
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct pair *pair = (struct pair *)qp;

	(void)mask;
	attr->qp_state = pair->state;
	attr->cur_qp_state = pair->state;
	attr->dest_qp_num = pair->dest_qpn;
	attr->cap = pair->init.cap;
	if (init)
		*init = pair->init;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct pair *pair = (struct pair *)qp;

	pthread_mutex_lock(&loopback_lock);
	pairs[qp->qp_num] = NULL;
	clear(&pair->sends);
	clear(&pair->receives);
	pthread_mutex_unlock(&loopback_lock);
	free(pair);
	return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	struct shared_queue *shared = calloc(1, sizeof(*shared));

	(void)init;
	if (!shared)
		return NULL;
	shared->srq.context = pd->context;
	shared->srq.pd = pd;
	return &shared->srq;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	(void)srq;
	(void)attr;
	(void)mask;
	return 0;
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	(void)srq;
	memset(attr, 0, sizeof(*attr));
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct shared_queue *shared = (struct shared_queue *)srq;

	pthread_mutex_lock(&loopback_lock);
	clear(&shared->receives);
	pthread_mutex_unlock(&loopback_lock);
	free(shared);
	return 0;
}
