// Command otelcol is the OpenTelemetry Collector with an OTLP receiver and an exporter that appends traces to a file as
// JSON lines. Its own metrics need clients of three clouds, so its telemetry is logs only.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

const version = "0.160.0"

var fileType = component.MustNewType("file")

type fileConfig struct {
	Path string `mapstructure:"path"`
}

type fileExporter struct {
	component.StartFunc
	component.ShutdownFunc
	path string
	lock sync.Mutex
}

func (e *fileExporter) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (e *fileExporter) ConsumeTraces(_ context.Context, traces ptrace.Traces) error {
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return err
	}
	e.lock.Lock()
	defer e.lock.Unlock()
	file, err := os.OpenFile(e.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(append(line, '\n'))
	return err
}

func newFileFactory() exporter.Factory {
	create := func(_ context.Context, _ exporter.Settings, config component.Config) (exporter.Traces, error) {
		return &fileExporter{path: config.(*fileConfig).Path}, nil
	}
	config := func() component.Config { return &fileConfig{} }
	return exporter.NewFactory(fileType, config, exporter.WithTraces(create, component.StabilityLevelDevelopment))
}

func factories() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](newFileFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	return otelcol.Factories{
		Receivers: receivers,
		Exporters: exporters,
		Telemetry: otelconftelemetry.NewFactory(),
	}, nil
}

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Description: "OpenTelemetry Collector", Version: version},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				DefaultScheme:     "yaml",
				ProviderFactories: []confmap.ProviderFactory{yamlprovider.NewFactory()},
			},
		},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(fmt.Errorf("otelcol: %w", err))
	}
}
