/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The socket that `-device pvrdma,mad-chardev=` speaks to: the protocol of QEMU's rdmacm-mux (contrib/rdmacm-mux), by which
 * the device tells the GIDs of the guest and sends connection management datagrams. All peers are in this guest: each datagram
 * goes back to where it came from.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "loopback.h"

enum { REQUEST, RESPONSE };
enum { REGISTER, UNREGISTER, MAD };

struct mux_message {
	uint32_t type;
	uint32_t op;
	union ibv_gid gid;
	uint32_t error;
	uint32_t pad;
	int32_t umad_length;
	char umad[320];
	uint32_t pad_end;
};

_Static_assert(sizeof(struct mux_message) == 360, "as in rdmacm-mux.h");

static bool is(const union ibv_gid *a, const union ibv_gid *b)
{
	return !memcmp(a, b, sizeof(*a));
}

static void note_gid(uint32_t op, const union ibv_gid *gid)
{
	static const union ibv_gid none;
	int i, place = 0;

	pthread_mutex_lock(&loopback_lock);
	for (i = MAX_GIDS - 1; i > 0; i--) {
		if (is(&loopback_gids[i], gid)) {
			place = i;
			break;
		}
		if (op == REGISTER && is(&loopback_gids[i], &none))
			place = i;
	}
	if (place)
		loopback_gids[place] = op == REGISTER ? *gid : none;
	pthread_mutex_unlock(&loopback_lock);
}

static bool transfer(int fd, bool out, void *data, size_t length)
{
	ssize_t moved;

	while (length) {
		moved = out ? write(fd, data, length) : read(fd, data, length);
		if (moved <= 0)
			return false;
		data = (char *)data + moved;
		length -= (size_t)moved;
	}
	return true;
}

static bool answer(int fd, struct mux_message *message)
{
	if (message->op == REGISTER || message->op == UNREGISTER)
		note_gid(message->op, &message->gid);
	message->type = RESPONSE;
	message->error = 0;
	if (!transfer(fd, true, message, sizeof(*message)))
		return false;
	message->type = REQUEST;
	return message->op != MAD || transfer(fd, true, message, sizeof(*message));
}

static void *serve(void *argument)
{
	int listener = (int)(intptr_t)argument, fd;
	struct mux_message message;

	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		while (transfer(fd, false, &message, sizeof(message)) && answer(fd, &message))
			;
		close(fd);
	}
	return NULL;
}

/* Before QEMU's main: it connects when it reads its arguments. */
static void __attribute__((constructor)) start(void)
{
	const char *path = getenv("LAB_MUX_SOCKET");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	pthread_t thread;
	int fd;

	if (!path || strlen(path) >= sizeof(address.sun_path))
		return;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 1) ||
	    pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd))
		perror("loopback: mux socket");
}
