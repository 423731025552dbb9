package kvevict

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"sort"
	"strings"
	"testing"

	"kvevict.dev/kvevict/bindings/go/internal/native"
)

// golden is a file of pkg/abi, which a copy of the module alone does not have.
func golden(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "pkg", "abi", name))
	if err != nil {
		t.Skip("skipped: needs the source tree of the library: ", err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func symbols(t *testing.T) []string {
	var names []string
	for _, line := range golden(t, "kvevict.symbols") {
		names = append(names, strings.Split(line, "@")[0])
	}
	sort.Strings(names)
	return names
}

func mentions(t *testing.T, glob, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatal(glob, err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			seen["kvevict_"+m[1]] = true
		}
	}
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func TestEveryFunctionIsGenerated(t *testing.T) {
	generated := mentions(t, "internal/native/native.go", `(?m)^func Kvevict_(\w+)\(`)
	if expected := symbols(t); !reflect.DeepEqual(expected, generated) {
		t.Errorf("exported\n%v\ngenerated\n%v", expected, generated)
	}
}

// Functions that no public function calls are in not_wrapped.txt with a reason.
func TestEveryFunctionIsReachable(t *testing.T) {
	leftOut := map[string]bool{}
	for _, line := range golden(t, "../../bindings/not_wrapped.txt") {
		if words := strings.SplitN(line, " ", 3); words[0] == "go" && len(words) == 3 {
			leftOut[words[1]] = true
		}
	}
	var expected []string
	for _, name := range symbols(t) {
		if !leftOut[name] {
			expected = append(expected, name)
		}
	}
	if called := mentions(t, "*.go", `native\.Kvevict_(\w+)`); !reflect.DeepEqual(expected, called) {
		t.Errorf("exported and not left out\n%v\ncalled\n%v", expected, called)
	}
}

func TestDefaults(t *testing.T) {
	geometry := native.InitGeometry()
	emptyGeometry, _, err := (&Geometry{}).native()
	must(t, err)
	same(t, geometry, emptyGeometry)

	layer := native.InitLayerGeometry()
	floats := Geometry{Each: []LayerGeometry{{QDType: DTypeF32, KDType: DTypeF32, VDType: DTypeF32}}}
	_, each, err := floats.native()
	must(t, err)
	same(t, layer, each[0])

	view := native.InitView()
	empty, err := NewView(Layout{})
	must(t, err)
	same(t, view, *empty.content.Load().native)

	options := native.InitContextOptions()
	same(t, options, native.ContextOptions{StructSize: options.StructSize})

	evict := native.InitEvictOptions()
	same(t, evict, native.EvictOptions{StructSize: evict.StructSize})

	plan := native.InitPlanOptions()
	same(t, plan, native.PlanOptions{StructSize: plan.StructSize})

	inputs := native.InitSignalInputs()
	same(t, inputs, native.SignalInputs{StructSize: inputs.StructSize})

	score := native.InitScoreJob()
	same(t, score, native.ScoreJob{StructSize: score.StructSize})

	paged := native.InitPagedCacheOptions()
	noBlocks, err := (&PagedCacheOptions{}).native(DeviceCPU)
	must(t, err)
	same(t, paged, noBlocks)

	keep := native.InitKeepLists()
	noLists, err := (&KeepLists{}).native(DeviceCPU)
	must(t, err)
	same(t, keep, noLists)

	choose := native.InitSelectOptions()
	nothing, err := (&SelectOptions{}).native(DeviceCPU, 0)
	must(t, err)
	same(t, choose, nothing)
}

func TestContextRunsTheSIMDTargetItIsGiven(t *testing.T) {
	for _, name := range SIMDTargets() {
		said := ""
		c, err := NewContext(&ContextOptions{SIMDTarget: name, LogLevel: LogInfo,
			Log: func(_ LogLevel, line string) { said += line }})
		must(t, err)
		must(t, c.Close())
		if !strings.Contains(said, "SIMD target "+name+",") {
			t.Error(name, said)
		}
	}
	_, err := NewContext(&ContextOptions{SIMDTarget: "MMX"})
	fails(t, err, StatusInvalidArgument, `simd_target "MMX"`)
}

// Methods that the transcript does not reach, each with a test of its own.
var apart = map[string]string{
	"Context.Close":              "TestCloseTwice",
	"PagedSequence.Evict":        "TestPagedCachesCheckTheirArguments",
	"Sequence.KeepPositionsInto": "TestSlicesThatAreTooShort",
	"Workspace.New":              "TestNewWorkspacesAreAligned",
	"View.Close":                 "TestUseAfterClose",
	"View.Layout":                "TestPagedViewsHaveALayout",
	"GPUs":                       "TestGPUs",
	"NewPolicy":                  "TestPagedViewsHaveALayout",
	"Address":                    "TestScoresOfSlicesPointersAndAddressesAreEqual",
	"Pointer":                    "TestScoresOfSlicesPointersAndAddressesAreEqual",
	"TokenMajor":                 "TestLayouts",
	"HeadMajor":                  "TestLayouts",
	"Transposed":                 "TestLayouts",
	"PagedTokenMajor":            "TestLayouts",
	"PagedHeadMajor":             "TestLayouts",
	"Vectorised":                 "TestLayouts",
	"InBlocks":                   "TestLayouts",
}

// Every exported function and method is called by the replayer of the transcript, or by the test that
// `apart` names. Parameters' properties are in TestEveryParameterIsThere.
func TestEveryMethodIsReached(t *testing.T) {
	replayer, others := testSource(t, "calls_test.go", "replay_test.go", "transcript_test.go"), testSource(t)
	reached := 0
	for _, name := range exported(t) {
		short := name[strings.Index(name, ".")+1:]
		call := regexp.MustCompile(`\b` + short + `[(\[,]`)
		test, isApart := apart[name]
		switch inTranscript := call.MatchString(replayer); {
		case !isApart && !inTranscript:
			t.Errorf("no test calls %s", name)
		case isApart && !call.MatchString(functionIn(others, test)):
			t.Errorf("%s does not call %s", test, name)
		}
		reached++
	}
	if reached < 80 {
		t.Errorf("%d functions and methods", reached)
	}
}

// exported are the functions and methods of this package's files, but for properties of policies.
func exported(t *testing.T) (names []string) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	declared := regexp.MustCompile(`(?m)^func (?:\(\w+ \*?(\w+)\) )?([A-Z]\w*)[(\[]`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "parameters.go" {
			continue
		}
		text, err := os.ReadFile(file)
		must(t, err)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			if m[2] == "Unwrap" { // errors.Is calls it
				continue
			} else if m[1] != "" && m[1] != "handle" {
				names = append(names, m[1]+"."+m[2])
			} else if m[1] == "" {
				names = append(names, m[2])
			}
		}
	}
	return names
}

// functionIn is a function's text.
func functionIn(source, name string) string {
	_, text, _ := strings.Cut(source, "func "+name+"(")
	text, _, _ = strings.Cut(text, "\n}\n")
	return text
}

func testSource(t *testing.T, files ...string) string {
	if len(files) == 0 {
		var err error
		files, err = filepath.Glob("*_test.go")
		must(t, err)
	}
	all := ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		all += string(text)
	}
	return all
}

// Messages name functions by methods that exist.
func TestFunctionsHaveNamesOfMethods(t *testing.T) {
	types := map[string]reflect.Type{}
	for _, value := range []any{
		&Context{}, &Plan{}, &Sequence{}, &PagedCache{}, &PagedSequence{}, &Policy{}, &View{},
	} {
		types[reflect.TypeOf(value).Elem().Name()] = reflect.TypeOf(value)
	}
	named := 0
	for _, symbol := range symbols(t) {
		name := native.OwnName(symbol)
		if name == symbol {
			continue
		}
		named++
		parts := strings.Split(name, ".")
		if types[parts[0]] == nil {
			t.Errorf("%s is no %s", symbol, name)
		} else if _, ok := types[parts[0]].MethodByName(parts[1]); !ok {
			t.Errorf("%s is no %s", symbol, name)
		}
	}
	if named < 50 {
		t.Errorf("%d functions have names", named)
	}
}

func TestConstantsAreTheHeaders(t *testing.T) {
	same(t, native.MaxJobs, MaxJobs)
	same(t, uint32(native.PositionNext), uint32(PositionNext))
	any, all := QueryRowsAny, QueryRowsAll
	same(t, [2]uint32{native.QueryRowsAny, native.QueryRowsAll}, [2]uint32{uint32(any), uint32(all)})
}
