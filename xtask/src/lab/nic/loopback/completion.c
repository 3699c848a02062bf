/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Completion queues, and the channel by which QEMU's thread learns that there is something in them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "loopback.h"

struct channel {
	struct ibv_comp_channel channel;
	int writer;
};

struct completions {
	struct ibv_cq cq;
	struct ibv_wc *ring;
	int size;
	int first;
	int count;
	bool armed;
};

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = calloc(1, sizeof(*channel));
	int ends[2];

	if (!channel)
		return NULL;
	if (pipe2(ends, O_CLOEXEC)) {
		free(channel);
		return NULL;
	}
	channel->channel.context = context;
	channel->channel.fd = ends[0];
	channel->writer = ends[1];
	return &channel->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	close(((struct channel *)channel)->writer);
	free(channel);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	ssize_t got = read(channel->fd, cq, sizeof(*cq));

	if (got != (ssize_t)sizeof(*cq))
		return -1;
	*cq_context = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	(void)cq;
	(void)count;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			     int vector)
{
	struct completions *cq = calloc(1, sizeof(*cq));

	(void)vector;
	if (!cq)
		return NULL;
	/* QEMU takes them out behind the guest's back: room for more than the guest asked for. */
	cq->size = 2 * cqe + 64;
	cq->ring = calloc((size_t)cq->size, sizeof(*cq->ring));
	if (!cq->ring) {
		free(cq);
		return NULL;
	}
	cq->cq.context = context;
	cq->cq.channel = channel;
	cq->cq.cq_context = cq_context;
	cq->cq.cqe = cqe;
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct completions *dead = (struct completions *)cq;

	/* It stays, empty: an event that names it may still be in the pipe. */
	pthread_mutex_lock(&loopback_lock);
	dead->count = 0;
	dead->armed = false;
	pthread_mutex_unlock(&loopback_lock);
	return 0;
}

/* Under the lock. */
void complete(struct ibv_cq *cq, const struct ibv_wc *wc)
{
	struct completions *to = (struct completions *)cq;
	struct channel *channel = (struct channel *)cq->channel;

	if (to->count == to->size) {
		fprintf(stderr, "loopback: completion queue overrun\n");
		return;
	}
	to->ring[(to->first + to->count++) % to->size] = *wc;
	if (!to->armed || !channel)
		return;
	to->armed = false;
	if (write(channel->writer, &cq, sizeof(cq)) != (ssize_t)sizeof(cq))
		perror("loopback: completion event");
}

int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	struct completions *from = (struct completions *)cq;
	int taken = 0;

	pthread_mutex_lock(&loopback_lock);
	while (taken < count && from->count) {
		wc[taken++] = from->ring[from->first];
		from->first = (from->first + 1) % from->size;
		from->count--;
	}
	pthread_mutex_unlock(&loopback_lock);
	return taken;
}

int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)solicited_only;
	pthread_mutex_lock(&loopback_lock);
	((struct completions *)cq)->armed = true;
	pthread_mutex_unlock(&loopback_lock);
	return 0;
}
