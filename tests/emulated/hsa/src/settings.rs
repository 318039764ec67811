//! Numbers that change how the emulator behaves: from `EMULATED_HSA_NAME` at the start, and by `set NAME VALUE` later.

wharf_emulated_common::settings! {
    "EMULATED_HSA_", "emulated HSA runtime";
    /// Whether the kernel's driver is there: without it `hsa_init` is out of resources.
    KFD "kfd" 1;
    /// How many devices there are, at most 16. Without one, initialising succeeds.
    DEVICES "devices" 2;
    /// The machine's number of the first device that this process sees.
    FIRST "first" 0;
    /// Bytes of memory of each device.
    MEMORY "memory" 16 << 30;
    /// Whether the host reaches the devices' memory: 1 all of it (large BAR), 0 none.
    BAR "bar" 0;
    /// Whether devices reach each other.
    PEERS "peers" 1;
    /// How they are linked: 2 PCI Express, 4 xGMI.
    LINK "link" 4;
    /// Whether devices have a number of their own.
    UUIDS "uuids" 1;
    /// Whether locked host memory has another address for agents.
    ALIAS "alias" 1;
    /// How many bytes of `hsa_amd_pointer_info_t` the runtime knows.
    INFO_SIZE "info_size" 56;
    /// Copy engines of each device, at most 8; fixed at the first copy.
    ENGINES "engines" 2;
    /// Longest random delay before a copy moves bytes, in microseconds.
    DELAY_US "delay_us" 50;
    /// What every copy takes at least, in microseconds.
    COPY_US "copy_us" 0;
    /// Whether copies overtake each other by chance.
    REORDER "reorder" 1;
    /// Seed of the random numbers.
    SEED "seed" 1;
    /// Microseconds from a signal's fall to its handler.
    HANDLER_US "handler_us" 0;
    /// Whether what was under way on a device that failed is reported by a negative signal; else never.
    FAULT_REPORTS "fault_reports" 0;
    /// Whether only one handler of system events can be registered, as up to ROCm 5.
    ONE_HANDLER "one_handler" 0;
    /// Whether memory can be shared by handles.
    IPC "ipc" 1;
    /// Microseconds that attaching takes.
    ATTACH_US "attach_us" 0;
    /// How another process's memory is fetched: 0 by pidfd, else by socket; 1 pidfd alone; 2 socket alone; 3 not at all.
    FETCH "fetch" 0;
    /// Whether the kernel can export memory as dma-bufs.
    DMABUF "dmabuf" 1;
    /// Whether the runtime can be asked about dma-bufs.
    DMABUF_ASKED "dmabuf_asked" 1;
    /// Whether memory of the host takes advice of devices that share it (SVM).
    SVM "svm" 1;
    /// Pages of a dma-buf before the memory, at least 1.
    PAD "pad" 3;
    /// Whether addresses of freed memory are given out again at once; if not, they are kept as long as possible.
    REUSE "reuse" 0;
}
