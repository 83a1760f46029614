{{/* Names and labels that templates share. */}}

{{- define "pdx.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Release and chart name, once where one holds the other; 50 characters leave room for "-operator" and the like. */}}
{{- define "pdx.fullname" -}}
{{- $name := include "pdx.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pdx.operator" -}}
{{- include "pdx.fullname" . }}-operator
{{- end -}}

{{- define "pdx.serviceAccount" -}}
{{- default (include "pdx.operator" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "pdx.selectorLabels" -}}
app.kubernetes.io/name: {{ include "pdx.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* Labels of an object, of a dict of root and more. Each key is there once: the chart's own first, then more, then commonLabels. */}}
{{- define "pdx.labelsWith" -}}
{{- $root := .root -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/name" (include "pdx.name" $root)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/part-of" "pdx" -}}
{{- toYaml (merge $own (default dict .more) (default dict $root.Values.commonLabels)) -}}
{{- end -}}

{{- define "pdx.labels" -}}
{{- include "pdx.labelsWith" (dict "root" .) -}}
{{- end -}}

{{/* Labels of the operator's own objects, of a dict of root and more. */}}
{{- define "pdx.operatorLabels" -}}
{{- include "pdx.labelsWith" (dict "root" .root "more" (merge (dict "app.kubernetes.io/component" "operator") (default dict .more))) -}}
{{- end -}}

{{/* An image's full name, of a dict of root and image. */}}
{{- define "pdx.image" -}}
{{- with .root.Values.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .root.Chart.AppVersion .image.tag }}{{ end -}}
{{- end -}}
