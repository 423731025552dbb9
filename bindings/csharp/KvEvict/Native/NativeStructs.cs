// The structs of kvevict.h, field by field under their C names. The tests compare size
// and offsets with the library's layout table.
using unsafe AllocFn = delegate* unmanaged[Cdecl]<nuint, nuint, void*, void*>;
using unsafe FreeFn = delegate* unmanaged[Cdecl]<void*, nuint, nuint, void*, void>;
using unsafe LogFn = delegate* unmanaged[Cdecl]<KvEvict.KvLogLevel, byte*, void*, void>;
using unsafe ParallelFn =
    delegate* unmanaged[Cdecl]<uint, delegate* unmanaged[Cdecl]<void*, uint, uint, void>, void*, void*, void>;

namespace KvEvict;

internal unsafe struct kvevict_gpu_info
{
    public uint struct_size;
    public uint compute_capability;
    public uint driver_version;
    public uint nvrtc_version;
    public byte* name;
    public byte* nvrtc;
    public byte* target;
    public byte* problem;
}

internal unsafe struct kvevict_dtype_info
{
    public uint struct_size;
    public KvDType dtype;
    public byte* name;
    public uint element_bytes;
    public uint can_move;
    public uint can_score;
    public uint can_rotate;
}

internal unsafe struct kvevict_context_options
{
    public uint struct_size;
    public KvDevice device;
    public uint n_threads;
    public KvLogLevel log_level;
    public AllocFn alloc;
    public FreeFn free;
    public void* alloc_user_data;
    public ParallelFn parallel;
    public void* parallel_user_data;
    public LogFn log;
    public void* log_user_data;
    public byte* simd_target;
    public void* cuda_context;
    public byte* libcuda_path;
    public byte* libnvrtc_path;
    public byte* kernel_cache_dir;
    public AllocFn device_alloc;
    public FreeFn device_free;
    public void* device_alloc_user_data;
    public uint select_on_host;
    public uint debug;
}

internal unsafe struct kvevict_policy
{
    public uint struct_size;
    public KvPolicyKind kind;
    public double budget;
    public uint n_sink;
    public uint n_recent;
    public uint obs_window;
    public uint keep_window;
    public KvPool pool;
    public uint pool_kernel;
    public KvPoolEdge pool_edge;
    public KvReduce window_reduce;
    public KvReduce group_reduce;
    public KvShapingOrder shaping_order;
    public KvScope scope;
    public KvReduce scope_reduce;
    public KvTie tie;
    public KvLayerSplit layer_split;
    public double pyramid_alpha;
    public uint pyramid_beta;
    public uint reserved;
    public ulong seed;
}

internal unsafe struct kvevict_resolved_policy
{
    public uint struct_size;
    public uint budget;
    public uint n_sink;
    public uint n_recent;
    public uint n_selected;
    public uint obs_window;
}

internal unsafe struct kvevict_policy_info
{
    public uint struct_size;
    public KvPolicyKind kind;
    public byte* name;
    public byte* signal;
    public byte* shaping;
    public byte* budget;
    public byte* trigger;
    public byte* paper;
}

internal unsafe struct kvevict_preset_info
{
    public uint struct_size;
    public uint reserved;
    public byte* name;
    public byte* policy_text;
    public byte* reproduces;
}

internal unsafe struct kvevict_plane
{
    public ulong data;
    public long token_stride_bytes;
    public long head_stride_bytes;
    public long element_stride_bytes;
    public long block_stride_bytes;
    public KvDType dtype;
    public uint head_dim;
    public uint row_bytes;
    public fixed uint reserved[3];
}

internal unsafe struct kvevict_view
{
    public uint struct_size;
    public uint n_kv_heads;
    public kvevict_plane k;
    public kvevict_plane v;
    public kvevict_plane* companions;
    public uint n_companions;
    public uint block_size;
    public int* block_table;
    public nuint block_table_len;
}

internal unsafe struct kvevict_geometry
{
    public uint struct_size;
    public uint n_layers;
    public uint n_q_heads;
    public uint n_kv_heads;
    public uint k_head_dim;
    public uint v_head_dim;
    public KvDType q_dtype;
    public KvDType k_dtype;
    public KvDType v_dtype;
    public uint max_tokens;
    public float softmax_scale;
    public uint reserved;
}

internal unsafe struct kvevict_capabilities
{
    public uint struct_size;
    public uint can_move;
    public uint can_score;
    public uint can_rotate;
    public KvReason move_reason;
    public KvReason score_reason;
    public KvReason rotate_reason;
    public uint needs_score;
}

internal unsafe struct kvevict_evict_options
{
    public uint struct_size;
    public uint reserved;
    public int* protected_positions;
    public nuint protected_positions_len;
    public float* scores;
    public nuint scores_len;
    public ulong scores_layer_stride;
    public ulong scores_head_stride;
}

internal unsafe struct kvevict_evict_report
{
    public uint struct_size;
    public uint evicted;
    public ulong bytes_before;
    public ulong bytes_after;
    public ulong tokens_before;
    public ulong tokens_after;
    public ulong blocks_freed;
}

internal unsafe struct kvevict_sequence_memory
{
    public uint struct_size;
    public uint reserved;
    public ulong lengths;
    public ulong positions;
    public uint n_listed;
    public uint n_lists;
}
