/* A ring all-reduce: N ranks have M bytes of floats each, and at the end each has the sum of all.
 *
 *   ring-allreduce [-d DEVICE,DEVICE...] [-n RANKS] [-b BYTES] [-i MILLISECONDS] [-g GID_INDEX] [-t SECONDS] [-v]
 *
 * Rank r sends to rank r+1 and receives from rank r-1 only. The buffer is cut into N chunks.
 *   reduce-scatter, N-1 steps: send one chunk on, add the chunk that comes; then each rank has the sum of one chunk
 *   all-gather,     N-1 steps: send that on, keep what comes; then each rank has all sums
 * So each rank sends 2(N-1) chunks of M/N bytes, 2M(N-1)/N bytes in all, whatever N is.
 *
 * Each rank is a process with a device of its own (rank r takes the device r modulo their number). The first round prints
 * each step of each rank, with -v every round does. -i is the pause between rounds.
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

enum { MOST_RANKS = 16, MOST_STEPS = 2 * (MOST_RANKS - 1) };
/* Work requests of a rank: the upper bit says which kind, the rest which step. */
enum { RECV = 0x100, STEP = 0xff };

struct options {
	const char *devices[MOST_RANKS];
	unsigned device_count, ranks, pause_ms, seconds;
	size_t chunk; /* floats */
	int gid;
	bool verbose;
};

/* What a rank reports of a round. Times are nanoseconds of CLOCK_MONOTONIC. */
struct report {
	struct {
		uint64_t posted, sent, received;
	} step[MOST_STEPS];
	uint64_t wrong;
};

static unsigned steps(const struct options *options)
{
	return 2 * (options->ranks - 1);
}

static bool reduces(const struct options *options, unsigned step)
{
	return step < options->ranks - 1;
}

/* The chunk that rank sends in a step; what it receives is the one that its predecessor sends. */
static unsigned chunk_of(const struct options *options, unsigned rank, unsigned step)
{
	unsigned n = options->ranks;

	return reduces(options, step) ? (rank + n - step) % n : (rank + 2 * n - step) % n;
}

static unsigned before(const struct options *options, unsigned rank)
{
	return (rank + options->ranks - 1) % options->ranks;
}

static void read_all(int socket, void *into, size_t size)
{
	errno = 0;
	if (recv(socket, into, size, MSG_WAITALL) != (ssize_t)size)
		exit(rc_stop ? 0 : 1);
}

static void write_all(int socket, const void *from, size_t size)
{
	if (send(socket, from, size, MSG_NOSIGNAL) != (ssize_t)size)
		exit(rc_stop ? 0 : 1);
}

static float input(unsigned rank, size_t at)
{
	/* Small whole numbers: their sums are exact. */
	return (float)((rank + 1) * (at % 1000 + 1));
}

/* Where what comes in a step is put: to be added, into a place of its own; to be kept, where it belongs. */
static size_t place(const struct options *options, unsigned rank, unsigned step)
{
	size_t at = reduces(options, step) ? options->ranks + step : chunk_of(options, before(options, rank), step);

	return at * options->chunk * sizeof(float);
}

static void post_receives(struct rc *prev, const struct options *options, unsigned rank)
{
	for (unsigned step = 0; step < steps(options); step++)
		rc_post_recv(prev, RECV | step, place(options, rank, step), options->chunk * sizeof(float));
}

/* One round. False if the program is to stop. */
static bool round_of(struct rc *next, const struct options *options, unsigned rank, struct report *report)
{
	float *data = (float *)next->buffer;
	unsigned last = steps(options), sent = 0, received = 0;
	bool here[MOST_STEPS] = { false };
	struct ibv_wc wc;

	for (unsigned step = 0; step < last; step++) {
		unsigned chunk = chunk_of(options, rank, step), comes = chunk_of(options, before(options, rank), step);
		float *sum = data + comes * options->chunk, *part = data + place(options, rank, step) / sizeof(float);

		report->step[step].posted = rc_now();
		rc_post_send(next, step, IBV_WR_SEND, chunk * options->chunk * sizeof(float),
			     options->chunk * sizeof(float), 0);
		/* The chunk of the next step is the one that comes in this step. */
		while (!here[step]) {
			if (!rc_next(next, &wc))
				return false;
			if (wc.wr_id & RECV) {
				report->step[wc.wr_id & STEP].received = rc_now();
				here[wc.wr_id & STEP] = true;
				received++;
			} else {
				report->step[wc.wr_id & STEP].sent = rc_now();
				sent++;
			}
		}
		for (size_t i = 0; reduces(options, step) && i < options->chunk; i++)
			sum[i] += part[i];
	}
	while (sent < last) {
		if (!rc_next(next, &wc))
			return false;
		report->step[wc.wr_id & STEP].sent = rc_now();
		sent++;
	}
	return received == last;
}

static void rank_of(const struct options *options, unsigned rank, int socket)
{
	const unsigned n = options->ranks;
	const size_t floats = n * options->chunk;
	const int depth = MOST_STEPS;
	struct rc next, prev;
	struct report report;
	struct rc_address both[2];
	char go;

	/* The data, and a place for each chunk that is to be added. */
	rc_open(&next, options->devices[rank % options->device_count], options->gid,
		(2 * n - 1) * options->chunk * sizeof(float), 2 * depth);
	/* 1.1 s: where all ranks share a slow CPU, 67 ms is too little for a chunk. SoftRoCE of Linux 6.1 can fail with a
	 * remote operation error when a message of many packets is sent again. */
	next.timeout = 18;
	rc_second(&prev, &next);
	rc_create_qp(&next, depth);
	rc_create_qp(&prev, depth);
	rc_to_init(&next);
	rc_to_init(&prev);
	both[0] = next.self;
	both[1] = prev.self;
	write_all(socket, both, sizeof(both));
	read_all(socket, both, sizeof(both));
	next.peer = both[0];
	prev.peer = both[1];
	rc_connect(&next, 7);
	rc_connect(&prev, 7);
	while (!rc_stop) {
		float *data = (float *)next.buffer;

		memset(&report, 0, sizeof(report));
		for (size_t i = 0; i < floats; i++)
			data[i] = input(rank, i);
		/* Before any rank of the ring sends. */
		post_receives(&prev, options, rank);
		write_all(socket, &go, 1);
		read_all(socket, &go, 1);
		if (!round_of(&next, options, rank, &report))
			break;
		for (size_t i = 0; i < floats; i++)
			report.wrong += data[i] != (float)(n * (n + 1) / 2) * (float)(i % 1000 + 1);
		write_all(socket, &report, sizeof(report));
	}
	exit(0);
}

static void print_steps(const struct options *options, const struct report *reports, uint64_t begin)
{
	for (unsigned step = 0; step < steps(options); step++) {
		printf("  step %u of %u, %s\n", step + 1, steps(options),
		       reduces(options, step) ? "reduce-scatter" : "all-gather");
		for (unsigned rank = 0; rank < options->ranks; rank++) {
			uint64_t posted = reports[rank].step[step].posted, sent = reports[rank].step[step].sent;
			uint64_t received = reports[rank].step[step].received;

			printf("    rank %u: chunk %u to rank %u posted at %.1f us, completed after %.1f us; chunk %u from "
			       "rank %u came at %.1f us\n",
			       rank, chunk_of(options, rank, step), (rank + 1) % options->ranks,
			       (double)(posted - begin) / 1000, (double)(sent - posted) / 1000,
			       chunk_of(options, before(options, rank), step), before(options, rank),
			       (double)(received - begin) / 1000);
		}
	}
}

/* Waits for all ranks, lets them go, and judges what they report. */
static uint64_t coordinate(const struct options *options, const int *sockets)
{
	struct report reports[MOST_RANKS];
	uint64_t wrong = 0, begin, end = 0;
	char go = 0;

	for (unsigned round = 1; !rc_stop; round++) {
		uint64_t bad = 0;

		for (unsigned rank = 0; rank < options->ranks; rank++)
			read_all(sockets[rank], &go, 1);
		begin = rc_now();
		for (unsigned rank = 0; rank < options->ranks; rank++)
			write_all(sockets[rank], &go, 1);
		for (unsigned rank = 0; rank < options->ranks; rank++) {
			read_all(sockets[rank], &reports[rank], sizeof(reports[rank]));
			bad += reports[rank].wrong;
		}
		for (unsigned rank = 0; rank < options->ranks; rank++)
			for (unsigned step = 0; step < steps(options); step++)
				if (reports[rank].step[step].received > end)
					end = reports[rank].step[step].received;
		wrong += bad;
		printf("round %u: %u ranks, %zu bytes each, %u steps of %zu bytes in %.1f us: ", round, options->ranks,
		       options->ranks * options->chunk * sizeof(float), steps(options),
		       options->chunk * sizeof(float), (double)(end - begin) / 1000);
		if (bad)
			printf("%llu of the sums are WRONG\n", (unsigned long long)bad);
		else
			printf("all sums are right\n");
		if (round == 1 || options->verbose)
			print_steps(options, reports, begin);
		usleep(options->pause_ms * 1000);
	}
	return wrong;
}

static void introduce(const struct options *options, const int *sockets)
{
	struct rc_address ends[MOST_RANKS][2], peers[2];
	unsigned n = options->ranks;

	for (unsigned rank = 0; rank < n; rank++)
		read_all(sockets[rank], ends[rank], sizeof(ends[rank]));
	for (unsigned rank = 0; rank < n; rank++) {
		peers[0] = ends[(rank + 1) % n][1];
		peers[1] = ends[before(options, rank)][0];
		printf("rank %u: %s, QP %u sends to QP %u of rank %u\n", rank,
		       options->devices[rank % options->device_count], ends[rank][0].qpn, peers[0].qpn, (rank + 1) % n);
		write_all(sockets[rank], peers, sizeof(peers));
	}
}

static unsigned split(char *list, const char **devices)
{
	unsigned count = 0;

	for (char *name = strtok(list, ","); name && count < MOST_RANKS; name = strtok(NULL, ","))
		devices[count++] = name;
	return count;
}

int main(int argc, char **argv)
{
	struct options options = { .devices = { "rxe0" }, .device_count = 1, .ranks = 4, .pause_ms = 500 };
	int option, sockets[MOST_RANKS];
	size_t bytes = 1 << 20;

	while ((option = getopt(argc, argv, "d:n:b:i:g:t:v")) != -1) {
		switch (option) {
		case 'd': options.device_count = split(optarg, options.devices); break;
		case 'n': options.ranks = (unsigned)atoi(optarg); break;
		case 'b': bytes = strtoul(optarg, NULL, 0); break;
		case 'i': options.pause_ms = (unsigned)atoi(optarg); break;
		case 'g': options.gid = atoi(optarg); break;
		case 't': options.seconds = (unsigned)atoi(optarg); break;
		case 'v': options.verbose = true; break;
		default: options.ranks = 0;
		}
	}
	if (options.ranks < 2 || options.ranks > MOST_RANKS || !options.device_count) {
		fprintf(stderr, "usage: ring-allreduce [-d DEVICE,DEVICE...] [-n RANKS (2 to 16)] [-b BYTES] "
				"[-i MILLISECONDS] [-g GID_INDEX] [-t SECONDS] [-v]\n");
		return 2;
	}
	options.chunk = (bytes / sizeof(float) + options.ranks - 1) / options.ranks;
	rc_handle_signals(options.seconds);
	for (unsigned rank = 0; rank < options.ranks; rank++) {
		int pair[2];
		char name[16];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
			rc_die("socketpair");
		snprintf(name, sizeof(name), "rank-%u", rank);
		if (rc_fork(name) == 0) {
			for (unsigned other = 0; other < rank; other++)
				close(sockets[other]);
			close(pair[0]);
			rank_of(&options, rank, pair[1]);
		}
		close(pair[1]);
		sockets[rank] = pair[0];
	}
	introduce(&options, sockets);
	/* The ranks die with this process. */
	return coordinate(&options, sockets) ? 1 : 0;
}
