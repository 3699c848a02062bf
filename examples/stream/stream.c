/* A sender keeps a window of messages under way to a receiver.
 *
 *   stream [-d DEVICE] [-p PEER_DEVICE] [-g GID_INDEX] [-o send|write] [-b BYTES] [-w WINDOW] [-r RETRY_CNT]
 *          [-m MESSAGES] [-l MILLISECONDS] [-k SECONDS] [-t SECONDS]
 *
 *   -m  the sender posts at most so many messages a second
 *   -l  the receiver is late: it posts one receive each so many milliseconds (with -o send)
 *   -k  the receiver is killed after so many seconds, as by the OOM killer
 *   -t  ends after so many seconds
 */
#include "rc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct options {
	const char *device, *peer;
	int gid, window, retry_cnt;
	unsigned rate, late_ms, kill_s, seconds;
	uint32_t bytes;
	enum ibv_wr_opcode opcode;
};

static void post(struct rc *rc, const struct options *options, uint64_t number)
{
	size_t place = number % (uint64_t)options->window * options->bytes;

	rc_post_send(rc, number, options->opcode, place, options->bytes, place);
}

/* Waits until so many messages may have been posted. */
static void pace(const struct options *options, uint64_t begin, uint64_t posted)
{
	uint64_t due = options->rate ? begin + posted * 1000000000 / options->rate : 0, now = rc_now();

	if (due > now)
		usleep((useconds_t)((due - now) / 1000));
}

static void send_all(struct rc *rc, const struct options *options)
{
	uint64_t posted = 0, done = 0, before = 0, begin = rc_now(), last = begin, now;
	struct ibv_wc wc;

	while (posted < (uint64_t)options->window)
		post(rc, options, posted++);
	while (rc_next(rc, &wc)) {
		done++;
		pace(options, begin, posted);
		post(rc, options, posted++);
		now = rc_now();
		if (now - last >= 1000000000) {
			double seconds = (double)(now - last) / 1e9, messages = (double)(done - before);

			printf("%.0f messages/s, %.1f MB/s\n", messages / seconds,
			       messages * options->bytes / seconds / 1e6);
			before = done;
			last = now;
		}
	}
	printf("done: %llu messages of %u bytes\n", (unsigned long long)done, options->bytes);
}

static void receive_all(struct rc *rc, const struct options *options)
{
	uint64_t number = 0, posted = 0;
	struct ibv_wc wc;

	/* RDMA WRITE takes no receive and no CPU of this side. */
	while (options->opcode == IBV_WR_RDMA_WRITE && !rc_stop)
		usleep(100000);
	while (posted < (uint64_t)options->window && !options->late_ms)
		rc_post_recv(rc, number++, posted++ * options->bytes, options->bytes);
	while (!rc_stop) {
		if (options->late_ms)
			usleep(options->late_ms * 1000);
		else if (!rc_next(rc, &wc))
			break;
		rc_post_recv(rc, number, number % (uint64_t)options->window * options->bytes, options->bytes);
		number++;
		while (options->late_ms && ibv_poll_cq(rc->cq, 1, &wc) > 0)
			;
	}
}

static void play(const struct options *options, bool sender, int socket)
{
	const char *device = sender ? options->device : options->peer;
	struct rc rc;

	rc_open(&rc, device, options->gid, (size_t)options->window * options->bytes, options->window);
	rc_create_qp(&rc, options->window);
	rc_to_init(&rc);
	rc_exchange(&rc, socket);
	rc_connect(&rc, options->retry_cnt);
	printf("%s: PID %d, %s, QP %u, connected to QP %u\n", sender ? "sender" : "receiver", getpid(), device,
	       rc.self.qpn, rc.peer.qpn);
	rc_exchange(&rc, socket);
	if (sender)
		send_all(&rc, options);
	else
		receive_all(&rc, options);
	rc_close(&rc);
}

static void receiver(const struct options *options, int socket)
{
	/* The default action of SIGALRM would end it too, but so its memory and its QP go in the way of a crash. */
	if (options->kill_s && rc_fork("killer") == 0) {
		sleep(options->kill_s);
		printf("receiver: killed\n");
		kill(getppid(), SIGKILL);
		_exit(0);
	}
	play(options, false, socket);
}

int main(int argc, char **argv)
{
	struct options options = {
		.device = "rxe0",
		.window = 16,
		.retry_cnt = 7,
		.bytes = 65536,
		.opcode = IBV_WR_SEND,
	};
	int option, sockets[2], status;
	pid_t child;

	while ((option = getopt(argc, argv, "d:p:g:o:b:w:r:m:l:k:t:")) != -1) {
		switch (option) {
		case 'd': options.device = optarg; break;
		case 'p': options.peer = optarg; break;
		case 'g': options.gid = atoi(optarg); break;
		case 'o': options.opcode = strcmp(optarg, "write") ? IBV_WR_SEND : IBV_WR_RDMA_WRITE; break;
		case 'b': options.bytes = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 'w': options.window = atoi(optarg); break;
		case 'r': options.retry_cnt = atoi(optarg); break;
		case 'm': options.rate = (unsigned)atoi(optarg); break;
		case 'l': options.late_ms = (unsigned)atoi(optarg); break;
		case 'k': options.kill_s = (unsigned)atoi(optarg); break;
		case 't': options.seconds = (unsigned)atoi(optarg); break;
		default:
			fprintf(stderr, "usage: stream [-d DEVICE] [-p PEER_DEVICE] [-g GID_INDEX] [-o send|write] [-b BYTES] "
					"[-w WINDOW] [-r RETRY_CNT] [-m MESSAGES] [-l MILLISECONDS] [-k SECONDS] [-t SECONDS]\n");
			return 2;
		}
	}
	if (!options.peer)
		options.peer = options.device;
	rc_handle_signals(options.seconds);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		rc_die("socketpair");
	child = rc_fork("receiver");
	if (child == 0) {
		close(sockets[0]);
		receiver(&options, sockets[1]);
		return 0;
	}
	close(sockets[1]);
	play(&options, true, sockets[0]);
	kill(child, SIGTERM);
	if (waitpid(child, &status, 0) != child)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : !options.kill_s;
}
