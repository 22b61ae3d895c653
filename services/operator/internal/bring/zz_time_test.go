package bring
import ("testing";"fmt";"strings";"time";"os";"path/filepath")
func TestZZTime(t *testing.T){
 run:=func(name,kind,text string){ f:=filepath.Join(t.TempDir(),"x.yaml"); os.WriteFile(f,[]byte(text),0o600); s:=time.Now(); p:=New(kind,nil,"x"); err:=read(p,kind,f); r:=time.Since(s); s=time.Now(); out,err2:=p.Settle(nil,host()); t.Log(name,len(text),"read",r,err,"settle",time.Since(s),err2,len(out),len(p.Services()),len(p.LeftOut())) }
 var b strings.Builder; b.WriteString("models:\n")
 for i:=range 9000 { fmt.Fprintf(&b,"  m%d: {cmd: \"x/llama-server --port ${PORT} -m /srv/m%d.gguf -c 4096\"}\n",i,i) }
 run("refused","llama-swap",b.String())
 run("good","llama-swap",strings.ReplaceAll(b.String(),"\"x/","\"/x/"))
 b.Reset(); b.WriteString("services:\n")
 for i:=range 6000 { fmt.Fprintf(&b,"  m%d: {image: \"IMG:1\", gpus: all, ports: [\"%d:80\"], command: [a,b,c], volumes: [\"/srv/m%d:/m\"], depends_on: [m%d]}\n",i,i+1,i,i+1) }
 run("compose chain","compose",b.String())
 run("compose chain good","compose",strings.ReplaceAll(b.String(),"IMG","img"))
}
