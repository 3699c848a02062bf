/* Writes blocks to a disk past the page cache, reads each back and compares.
 *
 *   disk [-l MS] [-t SECONDS] PATH
 *
 *   -l  waits so many milliseconds between two blocks [5]
 *   -t  ends after so many seconds
 *
 * It knows nothing of RDMA. On an NVMe disk over RDMA each write and each read becomes one order that the kernel sends. What
 * is on the first 4 MiB of the disk is lost.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 1024 };

static volatile sig_atomic_t over;

static void stop(int signal)
{
	(void)signal;
	over = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "disk: %s: %s\n", what, strerror(errno));
	exit(1);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = stop };
	long wait_ms = 5, seconds = 0;
	unsigned long done = 0;
	time_t start = time(NULL), said = start;
	char *out, *in;
	int fd, option;

	while ((option = getopt(argc, argv, "l:t:")) != -1) {
		if (option == 'l')
			wait_ms = atol(optarg);
		else if (option == 't')
			seconds = atol(optarg);
		else
			return 2;
	}
	if (optind + 1 != argc) {
		fprintf(stderr, "usage: disk [-l MS] [-t SECONDS] PATH\n");
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	/* Past the page cache: it would answer the reads itself. O_EXCL: not a disk that is mounted. */
	fd = open(argv[optind], O_RDWR | O_DIRECT | O_EXCL);
	if (fd < 0)
		die(argv[optind]);
	if (posix_memalign((void **)&out, BLOCK, BLOCK) || posix_memalign((void **)&in, BLOCK, BLOCK))
		die("memory");
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (!over && (!seconds || time(NULL) - start < seconds)) {
		off_t at = (off_t)(done % BLOCKS) * BLOCK;
		struct timespec pause = { wait_ms / 1000, wait_ms % 1000 * 1000000 };

		memset(out, (int)(done % 251) + 1, BLOCK);
		if (pwrite(fd, out, BLOCK, at) != BLOCK)
			die("write");
		memset(in, 0, BLOCK);
		if (pread(fd, in, BLOCK, at) != BLOCK)
			die("read");
		if (memcmp(in, out, BLOCK)) {
			fprintf(stderr, "disk: block %lu is not what was written\n", done);
			return 1;
		}
		done++;
		if (time(NULL) != said) {
			said = time(NULL);
			printf("%lu blocks written, read and compared\n", done);
		}
		nanosleep(&pause, NULL);
	}
	printf("done: %lu blocks written, read and compared\n", done);
	return 0;
}
