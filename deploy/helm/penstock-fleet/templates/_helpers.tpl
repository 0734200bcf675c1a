{{- define "fleet.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "fleet.labels" -}}
app.kubernetes.io/name: penstock-fleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "fleet.selector" -}}
app.kubernetes.io/name: penstock-fleet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
