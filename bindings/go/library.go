package kvevict

import (
	"errors"
	"strings"
	"unsafe"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// Version is "MAJOR.MINOR.PATCH" of the library in use.
func Version() string { return native.Kvevict_version() }

// ABIVersion is the number in the SONAME of the library in use.
func ABIVersion() uint32 { return native.Kvevict_abi_version() }

// CheckDevice asks whether contexts can be created on a device here; if not, the error says why.
func CheckDevice(device Device) error { return native.Kvevict_device_check(int32(device)) }

// SIMDTargets is what the library holds and this CPU can run, best first: "AVX3_DL", ...
func SIMDTargets() []string {
	var names []string
	for {
		name := native.Kvevict_simd_target_at(uint32(len(names)))
		if name == "" {
			return names
		}
		names = append(names, name)
	}
}

// AutoBudget suggests a budget in tokens for a model of a context length and a full cache of so
// many bytes; 0: do not evict.
func AutoBudget(maxTokens int, fullCacheBytes uint64) (int, error) {
	var err error
	n := count(&err, "maxTokens", maxTokens)
	if err != nil {
		return 0, err
	}
	var budget uint32
	err = native.Kvevict_auto_budget(n, fullCacheBytes, &budget)
	return int(budget), err
}

// GPUInfo is a GPU and the compiler that would serve it.
type GPUInfo struct {
	Name              string
	ComputeCapability int    // 90 is 9.0
	DriverVersion     int    // the driver's CUDA version: 12040 is 12.4
	NVRTCVersion      int    // libnvrtc's CUDA version; 0 if there is a problem
	NVRTC             string // the libnvrtc found, as it was opened
	Target            string // "sm_90": machine code; "compute_80": PTX that the driver translates
	Problem           string // why no context can be created on it; "" if one can
}

// DTypeInfo is one row of the table of element types.
type DTypeInfo struct {
	DType        DType
	Name         string // such as "f32"
	ElementBytes int    // 0 if elements share bytes
	CanMove      bool   // compaction moves it
	CanScore     bool   // a signal can read keys of it
	CanRotate    bool   // RoPE can be re-applied to keys of it

	BlockElements int  // elements that are stored together
	BlockBytes    int  // the bytes that these take; both are 0 for opaque
	TakesScale    bool // rows may have a scale, a companion
	NeedsScale    bool // rows must have a scale to be read
	TakesMinimum  bool // rows may have a minimum
}

// PolicyInfo is one row of the table of policies.
type PolicyInfo struct {
	Name     string // its name in the text form
	Signal   string // what ranks a token
	Summary  string // what it keeps, in words
	Trigger  string // when it runs
	Paper    string // its source; "" if none
	Defaults string // parameters whose default differs from the library's, in the text form
}

// ParameterInfo is a parameter of policies.
type ParameterInfo struct {
	Key           string // its name in the text form
	Type          ParameterType
	Words         string  // its words: "mean|max|sum"; "" for numbers
	Doc           string  // what it does, in sentences
	Least, Most   float64 // bounds of numbers and counts; otherwise 0
	ExcludesLeast bool    // values are above Least
	TakesZero     bool    // 0 is allowed as well
	Default       string  // its default in the text form
}

// PresetInfo is a preset: options that reproduce another implementation's keep sets.
type PresetInfo struct {
	Name       string // its name in the text form
	PolicyText string // the same policy spelled out
	Reproduces string // the implementation that it reproduces
}

// GPUs is what the CUDA driver sees, in its order; StatusUnavailable, with the reason, if there is
// no driver or no GPU.
func GPUs() ([]GPUInfo, error) {
	n := native.GPUInfo{StructSize: uint32(unsafe.Sizeof(native.GPUInfo{}))}
	return table(func(i uint32) (GPUInfo, error) {
		err := native.Kvevict_gpu_at(i, &n)
		return GPUInfo{
			native.Text(n.Name), int(n.ComputeCapability), int(n.DriverVersion),
			int(n.NVRTCVersion), native.Text(n.NVRTC), native.Text(n.Target),
			native.Text(n.Problem),
		}, err
	})
}

// DTypes is the table of element types.
func DTypes() []DTypeInfo {
	n := native.DTypeInfo{StructSize: uint32(unsafe.Sizeof(native.DTypeInfo{}))}
	rows, _ := table(func(i uint32) (DTypeInfo, error) {
		err := native.Kvevict_dtype_at(i, &n)
		return DTypeInfo{
			DType(n.DType), native.Text(n.Name), int(n.ElementBytes),
			n.CanMove != 0, n.CanScore != 0, n.CanRotate != 0,
			int(n.BlockElements), int(n.BlockBytes),
			n.TakesScale != 0, n.TakesScale == 2, n.TakesMinimum != 0,
		}, err
	})
	return rows
}

// Policies is the table of policies.
func Policies() []PolicyInfo {
	n := native.PolicyInfo{StructSize: uint32(unsafe.Sizeof(native.PolicyInfo{}))}
	rows, _ := table(func(i uint32) (PolicyInfo, error) {
		err := native.Kvevict_policy_at(i, &n)
		return PolicyInfo{
			native.Text(n.Name), native.Text(n.Signal), native.Text(n.Summary),
			native.Text(n.Trigger), native.Text(n.Paper), native.Text(n.Defaults),
		}, err
	})
	return rows
}

// Parameters lists the parameters of a policy or a preset with its defaults, or all for "",
// with the defaults of policies that do not change them. The order is the text form's.
func Parameters(policy string) ([]ParameterInfo, error) {
	var name *byte
	if policy != "" {
		if _, err := ParsePolicy(policy); err != nil {
			return nil, err
		}
		name = keyOf(policy)
	}
	n := native.ParameterInfo{StructSize: uint32(unsafe.Sizeof(native.ParameterInfo{}))}
	return table(func(i uint32) (ParameterInfo, error) {
		err := native.Kvevict_parameter_at(name, i, &n)
		text, _, _ := strings.Cut(string(n.DefaultText[:]), "\x00")
		return ParameterInfo{
			native.Text(n.Key), ParameterType(n.Type), native.Text(n.Words), native.Text(n.Doc),
			n.Least, n.Most, n.ExcludesLeast != 0, n.TakesZero != 0, text,
		}, err
	})
}

// Presets is the table of presets.
func Presets() []PresetInfo {
	n := native.PresetInfo{StructSize: uint32(unsafe.Sizeof(native.PresetInfo{}))}
	rows, _ := table(func(i uint32) (PresetInfo, error) {
		err := native.Kvevict_preset_at(i, &n)
		return PresetInfo{
			native.Text(n.Name), native.Text(n.PolicyText), native.Text(n.Reproduces),
		}, err
	})
	return rows
}

// table reads rows until the index past the end. Only tables that the library knows
// by itself, unlike the GPUs of a machine, end that way.
func table[T any](at func(index uint32) (T, error)) ([]T, error) {
	var rows []T
	for {
		row, err := at(uint32(len(rows)))
		if errors.Is(err, StatusInvalidArgument) {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
}
