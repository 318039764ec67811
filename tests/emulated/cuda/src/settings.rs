//! Numbers that change how the emulator behaves: from `EMULATED_CUDA_NAME` at the start, and by `set NAME VALUE` later.

wharf_emulated_common::settings! {
    "EMULATED_CUDA_", "emulated CUDA driver";
    /// How many devices there are.
    DEVICES "devices" 2;
    /// Bytes of memory of each device.
    MEMORY "memory" 16 << 30;
    /// The driver's version: functions that came later cannot be used.
    VERSION "version" 13000;
    /// Longest random delay before a queued operation moves bytes, in microseconds.
    DELAY_US "delay_us" 50;
    /// Seed of the random delays.
    SEED "seed" 1;
    /// What every copy takes at least on its engine, in nanoseconds.
    LATENCY_NS "latency_ns" 0;
    /// Bandwidth of each copy engine in megabytes a second; 0: as fast as it goes.
    BANDWIDTH_MBS "bandwidth_mbs" 0;
    /// When the source of a pageable copy to the device is read: 0 late, as a pinned one; 1 in the call; 2 by turns.
    PAGEABLE "pageable" 2;
    /// Whether addresses of freed memory are given out again at once; if not, they are kept as long as possible.
    REUSE "reuse" 0;
    /// Whether memory is filled with 0xDF when it is freed and with 0xA5 when it is new.
    POISON "poison" 0;
    /// Whether freeing memory waits for what is queued in its context, as the driver does.
    FREE_WAITS "free_waits" 1;
    /// How another process's memory is fetched: 0 by pidfd, else by socket; 1 pidfd alone; 2 socket alone; 3 not at all.
    FETCH "fetch" 0;
    /// Microseconds that the first retaining of a primary context takes.
    RETAIN_US "retain_us" 0;
    /// Whether opening another process's memory waits until this is 0 again.
    OPEN_HELD "open_held" 0;
    /// Whether a call that waits longer than so many milliseconds ends the process with a message.
    HANG_MS "hang_ms" 60_000;
    /// Whether fabric handles are supported.
    FABRIC "fabric" 0;
    /// Whether devices do multicast.
    MULTICAST "multicast" 0;
    /// Processes with the same number can open each other's fabric handles.
    CLUSTER "cluster" 1;
    /// Whether devices do atomics on the memory of others that they reach.
    P2P_ATOMICS "p2p_atomics" 1;
    /// Whether dma-buf export is supported.
    DMABUF "dmabuf" 1;
    /// How far writes of network cards are ordered for devices: 0 not at all; 100 for the owner; 200 for all.
    ORDERING "ordering" 0;
    /// Who can flush such writes: 1 the host, 0 nobody.
    FLUSH "flush" 1;
    /// Whether operations on 64-bit words in streams are supported.
    WORDS64 "words64" 1;
    /// Whether devices can reach each other: 0 none; 1 all; 2 pairs (0 and 1, 2 and 3, ...).
    PEERS "peers" 1;
}
