/* Two processes send one message to and fro.
 *
 *   pingpong [-d DEVICE] [-p PEER_DEVICE] [-g GID_INDEX] [-b BYTES] [-t SECONDS]
 *
 * Each side posts its receive before its peer can send: a message that finds no receive posted has to be sent again
 * (RNR, see ../stream).
 */
#include "rc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECV = 1, SEND = 2 };

static void report(uint64_t rounds, uint64_t sum, uint64_t least, uint64_t most)
{
	printf("%llu round trips: mean %.1f us, min %.1f us, max %.1f us\n", (unsigned long long)rounds,
	       (double)sum / (double)rounds / 1000, (double)least / 1000, (double)most / 1000);
}

/* Waits until the receive has completed. The completion of the own send may come before or after it. */
static bool await_message(struct rc *rc)
{
	struct ibv_wc wc;

	do {
		if (!rc_next(rc, &wc))
			return false;
	} while (wc.wr_id != RECV);
	return true;
}

static void ping(struct rc *rc, uint32_t bytes)
{
	uint64_t rounds = 0, sum = 0, least = UINT64_MAX, most = 0, total = 0, last = rc_now();

	for (;;) {
		uint64_t begin = rc_now(), took;

		rc_post_send(rc, SEND, IBV_WR_SEND, 0, bytes, 0);
		if (!await_message(rc))
			break;
		took = rc_now() - begin;
		rc_post_recv(rc, RECV, bytes, bytes);
		rounds++;
		total++;
		sum += took;
		least = took < least ? took : least;
		most = took > most ? took : most;
		if (begin - last >= 1000000000) {
			report(rounds, sum, least, most);
			rounds = sum = most = 0;
			least = UINT64_MAX;
			last = begin;
		}
	}
	printf("done: %llu round trips\n", (unsigned long long)total);
}

static void pong(struct rc *rc, uint32_t bytes)
{
	while (await_message(rc)) {
		/* First the receive for the next message, then the answer that calls for it. */
		rc_post_recv(rc, RECV, bytes, bytes);
		rc_post_send(rc, SEND, IBV_WR_SEND, 0, bytes, 0);
	}
}

static void play(const char *who, const char *device, int gid, uint32_t bytes, unsigned seconds, int socket, bool first)
{
	const int depth = 16;
	struct rc rc;

	rc_open(&rc, device, gid, 2 * bytes, depth);
	rc_create_qp(&rc, depth);
	rc_to_init(&rc);
	rc_post_recv(&rc, RECV, bytes, bytes);
	rc_exchange(&rc, socket);
	rc_connect(&rc, 7);
	printf("%s: PID %d, %s, QP %u, connected to QP %u\n", who, getpid(), device, rc.self.qpn, rc.peer.qpn);
	/* No side begins before both are in RTS. */
	rc_exchange(&rc, socket);
	/* However long it took to get here. */
	alarm(seconds);
	if (first)
		ping(&rc, bytes);
	else
		pong(&rc, bytes);
	rc_close(&rc);
}

int main(int argc, char **argv)
{
	const char *device = "rxe0", *peer = NULL;
	uint32_t bytes = 64;
	unsigned seconds = 0;
	int gid = 0, option, sockets[2], status;
	pid_t child;

	while ((option = getopt(argc, argv, "d:p:g:b:t:")) != -1) {
		switch (option) {
		case 'd': device = optarg; break;
		case 'p': peer = optarg; break;
		case 'g': gid = atoi(optarg); break;
		case 'b': bytes = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 't': seconds = (unsigned)atoi(optarg); break;
		default:
			fprintf(stderr, "usage: pingpong [-d DEVICE] [-p PEER_DEVICE] [-g GID_INDEX] [-b BYTES] [-t SECONDS]\n");
			return 2;
		}
	}
	rc_handle_signals(0);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		rc_die("socketpair");
	child = rc_fork("pong");
	if (child == 0) {
		/* Of both ends each keeps one: when its peer has died, a read ends instead of waiting. */
		close(sockets[0]);
		play("pong", peer ? peer : device, gid, bytes, seconds, sockets[1], false);
		return 0;
	}
	close(sockets[1]);
	play("ping", device, gid, bytes, seconds, sockets[0], true);
	kill(child, SIGTERM);
	return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
