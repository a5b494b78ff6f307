"""The thread that writes and flushes the log without the GIL.

It takes one submission at a time (write these bytes there, then flush) and wakes the event loop
through an eventfd, so that a busy interpreter delays neither the disk nor the reply. While
nothing is submitted it fills the next segment with zeros, one slice at a time, so that a
submission never waits for more than one slice. The thread touches no Python object; the bytes
of a submission are kept alive by the reference held here until it is completed.

`corvo.consensus.wal.inline_thread` has the same interface without a thread.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.types cimport off_t
from posix.unistd cimport close, fdatasync, fsync, read, write

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int count, int flags)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int sigfillset(sigset_t *set)
    int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t *thread, void *attributes, void *(*run)(void *) noexcept nogil,
                       void *argument)
    int pthread_join(pthread_t thread, void **result)
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_cond_init(pthread_cond_t *condition, void *attributes)
    int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
    int pthread_cond_signal(pthread_cond_t *condition)
    int pthread_cond_destroy(pthread_cond_t *condition)


cdef enum:
    # How the file is flushed after the write; `corvo.platform.files` uses DATA and FULL too.
    SYNC_DATA = 1
    SYNC_FULL = 2
    # Small enough that a submission hardly notices it has waited for one.
    ZERO_SLICE = 128 * 1024

cdef enum Stage:
    IDLE
    PENDING
    DONE

ctypedef struct Submission:
    Stage stage
    int fd
    int sync
    off_t offset
    const char *data
    size_t size
    int error
    int64_t duration_ns

ctypedef struct Zeroing:
    Stage stage
    int fd
    int directory_fd
    size_t size
    size_t position
    int error

# Everything both threads see; all of it but `wake_fd` and `zeros` under `mutex`.
ctypedef struct Shared:
    pthread_mutex_t mutex
    pthread_cond_t work
    int wake_fd
    bint stopping
    Submission submission
    Zeroing zeroing
    char *zeros


cdef int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef int write_and_sync(int fd, const char *data, size_t size, off_t offset,
                        int sync) noexcept nogil:
    """0, or the errno. A short write is an error: the disk has stopped keeping its word."""
    cdef ssize_t written
    if size:
        written = pwrite(fd, data, size, offset)
        while written < 0 and errno == EINTR:
            written = pwrite(fd, data, size, offset)
        if written < 0:
            return errno
        if <size_t>written != size:
            return EIO
    if sync == SYNC_DATA and fdatasync(fd) != 0:
        return errno
    if sync == SYNC_FULL and fsync(fd) != 0:
        return errno
    return 0


cdef void zero_slice(Zeroing *zeroing, const char *zeros) noexcept nogil:
    """One step. The first makes the file's new name durable: if the old name were in force
    after a crash, a segment of the log would be found full of zeros."""
    cdef size_t size = zeroing.size - zeroing.position
    if size > ZERO_SLICE:
        size = ZERO_SLICE
    if zeroing.position == 0 and fsync(zeroing.directory_fd) != 0:
        zeroing.error = errno
        return
    zeroing.error = write_and_sync(zeroing.fd, zeros, size, <off_t>zeroing.position, SYNC_DATA)
    zeroing.position += size


cdef void report(Shared *shared, Stage *stage) noexcept nogil:
    """Called without the mutex, returns with it: the loop must not wake up to find it held."""
    cdef uint64_t one = 1
    pthread_mutex_lock(&shared.mutex)
    stage[0] = DONE
    pthread_mutex_unlock(&shared.mutex)
    write(shared.wake_fd, &one, sizeof(one))
    pthread_mutex_lock(&shared.mutex)


cdef void *run(void *argument) noexcept nogil:
    cdef Shared *shared = <Shared *>argument
    cdef Submission *submission = &shared.submission
    cdef Zeroing *zeroing = &shared.zeroing
    cdef int64_t started_ns
    pthread_mutex_lock(&shared.mutex)
    while True:
        if submission.stage == PENDING:
            pthread_mutex_unlock(&shared.mutex)
            started_ns = now_ns()
            submission.error = write_and_sync(submission.fd, submission.data, submission.size,
                                              submission.offset, submission.sync)
            submission.duration_ns = now_ns() - started_ns
            report(shared, &submission.stage)
        elif shared.stopping:
            break
        elif zeroing.stage == PENDING:
            pthread_mutex_unlock(&shared.mutex)
            zero_slice(zeroing, shared.zeros)
            if zeroing.error or zeroing.position == zeroing.size:
                report(shared, &zeroing.stage)
            else:
                pthread_mutex_lock(&shared.mutex)
        else:
            pthread_cond_wait(&shared.work, &shared.mutex)
    pthread_mutex_unlock(&shared.mutex)
    return NULL


cdef class WalThread:
    """See `corvo.consensus.wal.wal.Flusher` for the contract of each method."""

    cdef Shared *shared
    cdef pthread_t thread
    cdef bint running
    cdef bytes data
    cdef object loop
    cdef object flushed
    cdef object zeroed

    def __cinit__(self):
        self.shared = <Shared *>calloc(1, sizeof(Shared))
        if self.shared is NULL:
            raise MemoryError
        self.shared.wake_fd = -1
        pthread_mutex_init(&self.shared.mutex, NULL)
        pthread_cond_init(&self.shared.work, NULL)
        self.shared.zeros = <char *>calloc(1, ZERO_SLICE)
        if self.shared.zeros is NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.shared is NULL:
            return
        self.join()
        if self.shared.wake_fd >= 0:
            close(self.shared.wake_fd)
        pthread_cond_destroy(&self.shared.work)
        pthread_mutex_destroy(&self.shared.mutex)
        free(self.shared.zeros)
        free(self.shared)

    def attach(self, loop, flushed, zeroed):
        cdef sigset_t all_signals, old
        cdef int error
        self.shared.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.shared.wake_fd < 0:
            raise OSError(errno, "eventfd")
        # Signals belong to the loop's thread; a flush must not be interrupted by one.
        sigfillset(&all_signals)
        pthread_sigmask(SIG_SETMASK, &all_signals, &old)
        error = pthread_create(&self.thread, NULL, run, self.shared)
        pthread_sigmask(SIG_SETMASK, &old, NULL)
        if error:
            raise OSError(error, "pthread_create")
        self.running = True
        self.loop = loop
        self.flushed = flushed
        self.zeroed = zeroed
        loop.add_reader(self.shared.wake_fd, self._collect)

    def submit(self, int fd, off_t offset, bytes data not None, int sync):
        cdef Submission *submission = &self.shared.submission
        assert self.running and submission.stage == IDLE
        self.data = data
        submission.fd = fd
        submission.offset = offset
        submission.data = PyBytes_AS_STRING(data)
        submission.size = PyBytes_GET_SIZE(data)
        submission.sync = sync
        pthread_mutex_lock(&self.shared.mutex)
        submission.stage = PENDING
        pthread_mutex_unlock(&self.shared.mutex)
        pthread_cond_signal(&self.shared.work)

    def zero(self, int fd, size_t size, int directory_fd):
        cdef Zeroing *zeroing = &self.shared.zeroing
        assert self.running and zeroing.stage == IDLE and size > 0
        memset(zeroing, 0, sizeof(Zeroing))
        zeroing.fd = fd
        zeroing.size = size
        zeroing.directory_fd = directory_fd
        pthread_mutex_lock(&self.shared.mutex)
        zeroing.stage = PENDING
        pthread_mutex_unlock(&self.shared.mutex)
        pthread_cond_signal(&self.shared.work)

    def close(self):
        cdef int error = 0
        if not self.running:
            return 0
        self.loop.remove_reader(self.shared.wake_fd)
        self.join()
        if self.shared.submission.stage == DONE:
            error = self.shared.submission.error
        self.loop = self.flushed = self.zeroed = self.data = None
        return error

    cdef void join(self) noexcept:
        if not self.running:
            return
        self.running = False
        with nogil:
            pthread_mutex_lock(&self.shared.mutex)
            self.shared.stopping = True
            pthread_mutex_unlock(&self.shared.mutex)
            pthread_cond_signal(&self.shared.work)
            pthread_join(self.thread, NULL)

    def _collect(self):
        """The loop found the eventfd readable."""
        cdef uint64_t count
        cdef bint flushed, zeroed
        cdef Submission *submission = &self.shared.submission
        cdef Zeroing *zeroing = &self.shared.zeroing
        read(self.shared.wake_fd, &count, sizeof(count))
        pthread_mutex_lock(&self.shared.mutex)
        flushed = submission.stage == DONE
        zeroed = zeroing.stage == DONE
        if flushed:
            submission.stage = IDLE
        if zeroed:
            zeroing.stage = IDLE
        pthread_mutex_unlock(&self.shared.mutex)
        if flushed:
            self.data = None
            self.flushed(submission.error, submission.duration_ns)
        if zeroed and self.running:
            self.zeroed(zeroing.error)
