// Package conformance is Kubernetes' own end-to-end specs, of the release that the testbed builds its API servers of: the suites that
// have specs which need no kubelet. `make conformance` builds it and runs what specs.txt names.
package conformance

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	testfixtures "k8s.io/kubernetes/test/fixtures"

	_ "k8s.io/kubernetes/test/e2e/apimachinery"
	_ "k8s.io/kubernetes/test/e2e/apps"
	_ "k8s.io/kubernetes/test/e2e/architecture"
	_ "k8s.io/kubernetes/test/e2e/auth"
	_ "k8s.io/kubernetes/test/e2e/common"
	_ "k8s.io/kubernetes/test/e2e/feature"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/instrumentation"
	_ "k8s.io/kubernetes/test/e2e/kubectl"
	_ "k8s.io/kubernetes/test/e2e/lifecycle"
	_ "k8s.io/kubernetes/test/e2e/lifecycle/bootstrap"
	_ "k8s.io/kubernetes/test/e2e/network"
	_ "k8s.io/kubernetes/test/e2e/node"
	_ "k8s.io/kubernetes/test/e2e/scheduling"
	_ "k8s.io/kubernetes/test/e2e/storage"
	_ "k8s.io/kubernetes/test/utils/format"
)

var (
	specs   = flag.String("specs", "", "file with the names of the specs to run, one a line")
	results = flag.String("results", "", "file that gets a line of JSON for each spec that has ended")
	leashed = flag.Bool("leashed", false, "whether to end when the standard input does: its writer has ended, in whatever way")
)

// result is what the runner reads.
type result struct {
	Spec    string  `json:"spec"`
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"`
	// Output is what the spec logged, if it failed.
	Output string `json:"output,omitempty"`
}

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if *leashed {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(3)
		}()
	}
	if err := focus(*specs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	testfiles.AddFileSource(testfixtures.GetTestFixturesFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	// Not earlier: the preview of the specs that the framework makes takes away what stands outside of containers.
	ginkgo.ReportAfterEach(tell)
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	e2e.RunE2ETests(t)
}

// focus has Ginkgo run what the file names, and nothing else.
func focus(file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var names []string
	for name := range strings.Lines(string(text)) {
		names = append(names, regexp.QuoteMeta(strings.TrimSpace(name)))
	}
	// Anchored, so that most of several thousand specs are told apart by their first words.
	return flag.Set("ginkgo.focus", "^Kubernetes e2e suite ("+strings.Join(names, "|")+")$")
}

// tell writes that a spec has ended, so that what ran is known even of a process that had to be ended.
func tell(report ginkgo.SpecReport) {
	wasNotChosen := report.State.Is(types.SpecStateSkipped|types.SpecStatePending) && report.RunTime == 0
	if *results == "" || wasNotChosen {
		return
	}
	ended := result{
		Spec:    report.FullText(),
		State:   report.State.String(),
		Seconds: report.RunTime.Seconds(),
		Message: report.Failure.Message,
	}
	if report.Failed() {
		ended.Output = report.CapturedGinkgoWriterOutput
	}
	line, err := json.Marshal(ended)
	framework.ExpectNoError(err)
	file, err := os.OpenFile(*results, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	framework.ExpectNoError(err)
	defer file.Close()
	_, err = file.Write(append(line, '\n'))
	framework.ExpectNoError(err)
}
