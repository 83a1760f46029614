{{/* What the schema cannot see; included once, by the Deployment. */}}
{{- define "pdx.checks" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false, so serviceAccount.name must say which ServiceAccount the operator uses" -}}
{{- end -}}
{{- if and .Values.monitoring.podMonitor.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor")) -}}
{{- fail "monitoring.podMonitor.enabled is true, but the cluster does not know PodMonitors (monitoring.coreos.com/v1): install the Prometheus operator first, or write false. For `helm template` add --api-versions monitoring.coreos.com/v1/PodMonitor" -}}
{{- end -}}
{{- if and .Values.monitoring.rules.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule")) -}}
{{- fail "monitoring.rules.enabled is true, but the cluster does not know PrometheusRules (monitoring.coreos.com/v1): install the Prometheus operator first, or write false. For `helm template` add --api-versions monitoring.coreos.com/v1/PrometheusRule" -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/ServiceMonitor")) -}}
{{- fail "monitoring.serviceMonitor.enabled is true, but the cluster does not know ServiceMonitors (monitoring.coreos.com/v1): install the Prometheus operator first, or write false. For `helm template` add --api-versions monitoring.coreos.com/v1/ServiceMonitor" -}}
{{- end -}}
{{- end -}}
