{{- define "penstock.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* What the daemon and the plugin read alike: the pod is the node. */}}
{{- define "penstock.environment" -}}
- name: PENSTOCK_NODE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PENSTOCK_STATE_DIR
  value: /var/lib/penstock
{{- if .Values.nats.url }}
- name: PENSTOCK_NATS_URL
  value: {{ .Values.nats.url | quote }}
{{- end }}
{{- if .Values.nats.secret }}
{{- range $variable, $file := dict "CREDENTIALS" "user.creds" "NKEY" "nkey.seed" "CA" "ca.pem" "CERTIFICATE" "tls.crt" "PRIVATE_KEY" "tls.key" }}
{{- if has $file $.Values.nats.files }}
- name: PENSTOCK_NATS_{{ $variable }}
  value: /etc/penstock-nats/{{ $file }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
